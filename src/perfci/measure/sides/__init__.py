"""Sides between runs and through one: prepared, kept, untouched until the end."""

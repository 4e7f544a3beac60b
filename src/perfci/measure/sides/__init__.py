"""Sides between runs and through one: built before, kept for later, untouched until the end."""

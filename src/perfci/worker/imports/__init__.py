"""Modules that are imported once for all workers."""

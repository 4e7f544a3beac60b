"""Importing once, in the parent, what the suites of both sides import."""

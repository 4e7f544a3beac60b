"""Layer 1: decisions, estimators and intervals. Pure functions over arrays."""

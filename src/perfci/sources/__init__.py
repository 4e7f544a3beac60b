"""Layer 1: where base and head come from."""

"""Layer 1: where base and head come from: git, snapshots, and the environment of a side."""

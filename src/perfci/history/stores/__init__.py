"""The places that keep a history: a folder, a branch of a git repository."""

"""Places of a history: a folder, a branch of a repository."""

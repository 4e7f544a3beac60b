"""A GitHub on this machine: its API, a runner, and repositories with pull requests."""

"""Layer 5: GitHub, from the event to the pull request."""

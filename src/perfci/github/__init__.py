"""Layer 5: GitHub: from the event to what is measured, and from what was measured to the pull request."""

"""What must not be green."""

"""What an answer on ordinary cases costs."""

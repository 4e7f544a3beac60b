"""What a process does to show that a case cannot differ."""

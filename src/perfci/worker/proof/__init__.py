"""All that a process does to show that a case cannot differ between base and head."""

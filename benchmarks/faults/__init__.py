"""Plants one-line faults in the source, and notes which the tests catch."""

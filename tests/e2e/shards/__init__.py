"""A comparison that several machines share, in whole runs."""

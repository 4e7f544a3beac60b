"""Find the commit that changed a metric: comparisons in turns, and what follows from their answers."""

"""Layer 2: the run. Plans, builds both sides, measures worker pairs, keeps the journal, writes the results."""

"""Layer 3: the run. Plans, builds base and head, measures worker pairs, keeps the journal, writes the results."""

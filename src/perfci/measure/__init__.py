"""Floor 2: the conductor. Plans, builds both sides, measures worker pairs, keeps the journal, writes the results."""

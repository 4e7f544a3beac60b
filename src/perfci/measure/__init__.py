"""Floor 2: the conductor. Plans, builds both sides, measures launch pairs, keeps the journal, writes the results."""

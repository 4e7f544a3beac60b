"""Floor 2: the conductor. Plans, builds both arms, measures launch pairs, keeps the journal, writes the results."""

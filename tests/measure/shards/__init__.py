"""A comparison that several machines share: the deal, the merging, and what recorded runs say of both."""

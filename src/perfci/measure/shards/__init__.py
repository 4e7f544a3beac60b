"""A comparison that several machines share: its plan, the deal of its cases, what a shard must find, the merging."""

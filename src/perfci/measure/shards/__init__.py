"""A comparison shared by several machines: its plan, the deal of its cases, the merging."""

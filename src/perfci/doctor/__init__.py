"""Layer 3: `perfci doctor`: each check is a function of a Machine that gives Findings, bounded in time, and never
raises. It speaks where there is a remedy for this machine."""

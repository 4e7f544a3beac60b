"""Change-points over a simulated history: what is planted, what is proposed, and on which night."""

"""Layer 5: perfci in containers: what its image starts with, and what starts it."""

"""Layer 3: perfci in containers: what its image starts with, and what starts it."""

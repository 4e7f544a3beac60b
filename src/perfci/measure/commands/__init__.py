"""Cases that are processes of their own, and what they report."""

"""Layer 0: the documents. No input or output."""

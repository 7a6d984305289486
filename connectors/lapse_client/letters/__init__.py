"""Dead letters: read, sent back, and deleted."""

"""Dead letters at rest: archived, and sent back once."""

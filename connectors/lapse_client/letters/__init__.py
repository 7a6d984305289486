"""Dead letters: they are read, redriven and deleted."""

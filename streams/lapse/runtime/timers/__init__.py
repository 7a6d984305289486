"""The broker's clock as a worker knows it, and timers that are written to the log."""

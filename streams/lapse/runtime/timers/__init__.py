"""The broker's clock as a worker knows it, and timers that go through the log."""

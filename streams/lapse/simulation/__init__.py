"""Simulates a queue with the real core in virtual time, and replays recorded stretches of a queue."""

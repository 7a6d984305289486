"""The state of many messages, packed: segments of 4,096 places, their indexes, and those that lie on disk."""

"""The journal of a queue shard: how steps are written, and how a new owner restores the state."""

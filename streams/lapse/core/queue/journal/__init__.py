"""The journal of a queue shard: how a step is written, and how a new owner restores the state."""

"""The journal of a queue shard: what a step writes, and the state that a new owner makes of it."""

"""Adapters of the core's queue shard: from records to its inputs, and from its steps to records."""

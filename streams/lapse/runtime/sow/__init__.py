"""Adapters of the core's SOW shard: from records to its inputs, and from its steps to records."""

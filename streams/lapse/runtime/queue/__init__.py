"""A queue at work: from records to the core's queue shard, and from its steps to records."""

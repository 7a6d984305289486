"""A SOW topic at work: from records to the core's SOW shard, and from its steps to records."""

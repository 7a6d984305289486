"""The end of a queue: what keeps it in use, and how its shards agree on the end."""

"""Keys: how the key of a record is made from its payload, and which shard holds it."""

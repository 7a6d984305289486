"""Which commands reach a shard: they are decoded, and refused if their sender may not give them (X4)."""

"""The changelog of a shard: how its journal is written, kept, followed and read back."""

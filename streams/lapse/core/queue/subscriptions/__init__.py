"""Subscriptions of a queue shard: how they begin, stay alive, change and end."""

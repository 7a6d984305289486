"""Subscriptions: how those of a queue shard begin, stay alive, change and end."""

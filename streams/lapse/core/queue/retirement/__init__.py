"""Retirement: what keeps a queue in use, and how its shards agree to end it."""

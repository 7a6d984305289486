"""Retirement: what keeps a SOW topic in use, and how its shards agree to end it."""

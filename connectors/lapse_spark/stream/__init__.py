"""Streams: how they run, where they stand, and where they write."""

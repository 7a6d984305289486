"""Queries: the current records by filter, in order and with selected fields."""

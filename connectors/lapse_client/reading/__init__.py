"""Readers of topics: the life of a message, events, and the records from a bookmark on."""

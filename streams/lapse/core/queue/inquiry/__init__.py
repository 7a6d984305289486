"""Inquiries about a queue: depth, peek, filters, and which messages a user may see."""

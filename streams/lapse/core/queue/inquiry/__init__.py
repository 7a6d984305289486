"""Inquiries about a queue: depth, peek, filters, and the messages that a user may see."""

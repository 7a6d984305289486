"""Payloads: how values become bytes, and bytes values."""

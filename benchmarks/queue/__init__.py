"""Measurements of queues."""

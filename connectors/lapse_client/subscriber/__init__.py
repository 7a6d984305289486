"""Subscribers to queues: credits, settlements, and every way to receive."""

"""Subscribers to queues: credits, settlements, and the ways to receive messages."""

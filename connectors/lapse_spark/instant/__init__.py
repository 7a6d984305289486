"""Queues and SOW topics as of an instant, from their journals alone."""

"""Deliveries: how they arrive, wait for the application, and are read."""

"""Requests and replies."""

"""Measurements of the gateway and its console."""

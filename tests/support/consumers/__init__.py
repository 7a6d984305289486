"""Consumers that are no client of lapse, or have a fault, as programs."""

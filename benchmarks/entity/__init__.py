"""Measurements of many entities on a worker, and of changes beside busy entities."""

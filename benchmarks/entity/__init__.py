"""Measurements of many entities at a worker, and of changes beside busy ones."""

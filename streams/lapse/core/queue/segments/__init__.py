"""Segments: the packed state of 4,096 places each, their indexes, and the spill of segments to disk."""

"""Streams: their runs, progress and output."""

"""Measurements of the Spark jobs."""

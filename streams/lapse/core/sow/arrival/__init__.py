"""Arrival: records of the underlying topics become updates of records, as far as they are the latest of their keys."""

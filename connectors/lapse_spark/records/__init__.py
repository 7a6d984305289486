"""Kafka's records as rows: a module for each kind of record, and columns from their headers."""

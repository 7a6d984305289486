"""Kafka's records as rows: a module for each kind of record, and the columns that their headers make."""

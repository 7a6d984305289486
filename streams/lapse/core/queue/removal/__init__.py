"""Removal without settlement: purges, truncation by Kafka, and dead letters that the broker refuses."""

"""Kafka as the client meets it: how to reach a cluster, its metadata and clock, and plain readers of topics."""

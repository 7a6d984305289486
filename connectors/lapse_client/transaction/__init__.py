"""Outputs and acknowledgments in one transaction of Kafka."""

"""Outputs and acknowledgments in one Kafka transaction."""

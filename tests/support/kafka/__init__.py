"""Kafka brokers and topics of tests."""

"""Rewinds: messages that have left come back, from the records that Kafka still has."""

"""Rewinds: messages that have left are brought back from the records that Kafka still has."""

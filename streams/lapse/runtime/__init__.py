"""Faust and Kafka around the shards of `lapse.core`: transport, stores, runners, outputs, clock."""

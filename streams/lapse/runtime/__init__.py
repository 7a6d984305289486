"""How Faust and Kafka drive the shards of `lapse.core`: transport, stores, runners, outputs, clock."""

"""The client's access to Kafka: connections, metadata, the broker's clock, and plain readers of topics."""

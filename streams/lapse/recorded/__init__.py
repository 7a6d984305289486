"""What the journals of queues' shards say, without a worker: how messages left, and a shard as it was at an instant."""

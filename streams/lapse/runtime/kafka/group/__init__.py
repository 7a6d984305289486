"""The consumer group of the workers: who is a member, which shards each gets, and what goes on during a rebalance."""

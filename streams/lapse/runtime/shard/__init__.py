"""What owns one shard: the runner, its inbox, its commands and the payloads behind its messages."""

"""Queues as a whole, without a subscription: depth, peek, settlement, purge and rewind."""

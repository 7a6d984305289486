"""A queue as a whole, without a subscription: depth, peek, settlement, purge, rewind."""

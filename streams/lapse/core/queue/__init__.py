"""The queue state machine: one `QueueShard` per partition of a queue.

`shard` is the entrance; it hands arrivals, commands and instants to the parts, which decide, and every decision
becomes a `Change` that `QueueState.apply` carries out, live and in recovery alike.
"""

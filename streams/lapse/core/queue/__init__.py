"""The queue state machine: one `QueueShard` per partition of a queue.

`QueueShard` passes arrivals, commands and instants to its parts, which decide. Every decision becomes a `Change`.
`QueueState.apply` carries out changes, in operation and in recovery alike.
"""

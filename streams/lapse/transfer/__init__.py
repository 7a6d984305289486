"""Transfers: messages of a queue go to a queue of another deployment, in two stages (Q17).

`mover` leads a transfer and `copier` carries the payloads. The shards' part is
`lapse.core.queue.transfer`.
"""

"""Transfers: messages of a queue go to a queue of another deployment, in two stages (Q17).

`mover` controls a transfer, and `copier` copies the payloads. The shards' part is in `lapse.core.queue.transfer`.
"""

"""A naive queue shard, written from the contract: one dict entry per message, every rule a loop over all of them.

Slow and plain on purpose. Nothing of `lapse.core.queue` is used but its settings; positions are read as the core does.
Its rules are in `expected/`, by what they are about.
"""

from __future__ import annotations

from unit.core.queue.expected.inquiry import Inquiries
from unit.core.queue.expected.removal import Removals
from unit.core.queue.expected.rewinds import Rewinds
from unit.core.queue.expected.settlement import Settlements
from unit.core.queue.expected.transfer import Transfers


class Oracle(Rewinds, Settlements, Transfers, Inquiries, Removals):
    """What the contract expects of one shard."""

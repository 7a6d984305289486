"""Celery, and other programs on kombu, on queues of lapse.

An import of this package registers the scheme `lapse` with kombu::

    import lapse_kombu
    from celery import Celery

    app = Celery("shop", broker="lapse://localhost:9092")
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from lapse_kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("lapse", "lapse_kombu.transport:Transport")

"""The checks of `lapse doctor`: this machine, the cluster and its topics, and whether the entities are served.

Each check returns findings, and changes nothing.
"""

from lapse.doctor.finding import Finding, Verdict
from lapse.doctor.machine import of_machine
from lapse.doctor.service import of_service
from lapse.doctor.topics import of_topics

__all__ = ["Finding", "Verdict", "of_machine", "of_service", "of_topics"]

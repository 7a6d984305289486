"""The checks of `lapse doctor`: this machine, the cluster and its topics, and whether the entities are served.

Each check returns findings, and changes nothing.
"""

from lapse.doctor.finding import Finding, Verdict
from lapse.doctor.machine import check_machine
from lapse.doctor.service import check_service
from lapse.doctor.topics import check_topics

__all__ = ["Finding", "Verdict", "check_machine", "check_service", "check_topics"]

"""The figures of a producer's process."""

from dataclasses import dataclass
from typing import ClassVar

from dcp.prometheus import Metrics, metrics


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    kind: ClassVar[str] = "producer"
    metrics: ClassVar[Metrics] = metrics(
        {},
        """
dcp_producer_resident_bytes     resident_bytes      Resident memory of the producer.
dcp_producer_memory_bound_bytes memory_bound_bytes  Most memory with the present load; 0: unknown.
""",
    )

    resident_bytes: int = 0
    memory_bound_bytes: int = 0
    """Most memory that the process takes with its present load. 0 if it is unknown: several nodes,
    replicas, and recorded branches have no formula."""

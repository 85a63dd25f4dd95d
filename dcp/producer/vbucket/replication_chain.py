"""The copies of a vbucket that a sync write counts on: the active first, then its replicas.

How far those are ``Bucket.replicas`` says: it knows whether they are real (``replicas.py``).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"


def connection_name(source: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the name of the connection by which one node receives copies from another."""
    return f"{purpose}:node{source + 1}->node{target + 1}:{bucket}"


class Copy(NamedTuple):
    """How far one copy of a vbucket has come."""

    held_seqno: int
    persisted_seqno: int


Chain = Sequence[Copy | None]
"""All copies that there should be, the active first; None is one that no node has."""


def majority_of(chain: Chain) -> int:
    """Return how many copies are more than half of them."""
    return len(chain) // 2 + 1


def is_possible(chain: Chain) -> bool:
    """Whether enough copies exist for a sync write to be committed ever."""
    return sum(copy is not None for copy in chain) >= majority_of(chain)

"""The copies of a vbucket that a sync write needs: the active first, then its replicas.

``Bucket.replicas`` has the progress of the replicas (``replicas.py``).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"


def connection_name(source: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the name of the connection by which one node receives copies from another."""
    return f"{purpose}:node{source + 1}->node{target + 1}:{bucket}"


class CopyProgress(NamedTuple):
    """The progress of one copy of a vbucket."""

    held_seqno: int
    persisted_seqno: int


Chain = Sequence[CopyProgress | None]
"""All copies that there should be, the active first; None is one that no node has."""


def majority_of(chain: Chain) -> int:
    """Return the number of copies that is a majority."""
    return len(chain) // 2 + 1


def is_possible(chain: Chain) -> bool:
    """Return whether there are enough copies for a sync write ever to be committed."""
    return sum(copy is not None for copy in chain) >= majority_of(chain)

"""The copies of a vbucket that count for a sync write: the active first, then its replicas."""

from collections.abc import Sequence
from typing import Final, NamedTuple

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"


def connection_name(source: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the DCP connection name with which node ``target`` streams from node ``source``."""
    return f"{purpose}:node{source + 1}->node{target + 1}:{bucket}"


class CopyProgress(NamedTuple):
    held_seqno: int
    """The newest seqno that the active has, or that the replica acknowledged."""
    persisted_seqno: int


Chain = Sequence[CopyProgress | None]
"""One entry per copy of the bucket's settings, the active first. None: no node has this copy."""


def majority_of(chain: Chain) -> int:
    return len(chain) // 2 + 1


def is_possible(chain: Chain) -> bool:
    """Return False if too few copies exist to ever commit a sync write."""
    return sum(copy is not None for copy in chain) >= majority_of(chain)

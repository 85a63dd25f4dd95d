"""Counters of a cluster: tests assert on them, and STAT returns them."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from dcp.server.model.send_window import SendWindow


@dataclass(slots=True)
class Counters:
    """Counters by cause; dictionaries by vbucket lack vbuckets without events.

    Each module adds its own events here, under the bucket's lock.
    """

    items_sent: Counter[int] = field(default_factory=Counter)
    items_from_disk: int = 0
    """Number of items that were read from disk, whatever their snapshot marker said."""
    disk_scans: int = 0
    """How often streams of the present vbuckets began to read the disk; set in snapshots only."""
    cursors_dropped: int = 0
    """How often a stream had to read from disk again because memory was short."""
    streams_opened: Counter[int] = field(default_factory=Counter)
    streams_refused: Counter[int] = field(default_factory=Counter)
    flows: dict[tuple[int, bytes], SendWindow] = field(default_factory=dict)
    bytes_sent: int = 0
    buffer_acks: int = 0
    peak_unacked_bytes: int = 0
    peak_stream_unacked_bytes: int = 0
    """Most bytes outstanding on one stream with its own window."""
    peak_outbox_bytes: int = 0
    """Most bytes of answers that ever waited for one client."""
    noops_sent: int = 0
    noops_answered: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    connections_closed_for_errors: int = 0
    dcp_connections_opened: int = 0

    def count_items(self, vbucket: int, seqnos: npt.NDArray[np.uint64], *, from_disk: bool) -> None:
        self.items_sent[vbucket] += len(seqnos)
        if from_disk:
            self.items_from_disk += len(seqnos)

    @property
    def connections(self) -> dict[tuple[int, str], SendWindow]:
        return {
            (node, name.decode("utf-8", "replace")): flow
            for (node, name), flow in self.flows.items()
        }

    def snapshot(self, disk_scans: int) -> Self:
        """Return a copy that does not change; the caller holds the bucket's lock."""
        copied = deepcopy(self)
        copied.disk_scans = disk_scans
        return copied

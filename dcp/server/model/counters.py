"""The producer's counters: tests assert on them, and STAT answers them.

Written under the bucket's lock; ``snapshot()`` gives a copy that does not change.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dcp.server.model.send_window import SendWindow


@dataclass(slots=True)
class Counters:
    """The counters of a cluster. Dictionaries keyed by vbucket lack vbuckets without events.

    Written from outside: whoever does something counts it here, under the bucket's lock.
    """

    record_seqnos: bool = True
    items_sent: Counter[int] = field(default_factory=Counter)
    items_from_disk: int = 0
    """So many of them were read from disk, whatever their marker said."""
    disk_scans: int = 0
    """Only a snapshot has it: how often streams of the vbuckets that are here began to read the
    disk, whatever they showed of it.
    """
    cursors_dropped: int = 0
    """How often a stream was sent back to the disk, as memory was short."""
    streams_opened: Counter[int] = field(default_factory=Counter)
    streams_refused: Counter[int] = field(default_factory=Counter)
    flows: dict[tuple[int, bytes], SendWindow] = field(default_factory=dict)
    bytes_sent: int = 0
    buffer_acks: int = 0
    peak_unacked_bytes: int = 0
    peak_stream_unacked_bytes: int = 0
    """The most that was outstanding of one stream with a window of its own."""
    peak_outbox_bytes: int = 0
    """The most answers that ever waited for one client."""
    noops_sent: int = 0
    noops_answered: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    connections_closed_for_errors: int = 0
    dcp_connections_opened: int = 0
    _seqnos: dict[int, list[npt.NDArray[np.uint64]]] = field(default_factory=dict)

    def count_items(self, vbucket: int, seqnos: npt.NDArray[np.uint64], *, from_disk: bool) -> None:
        """Count items that go on the wire."""
        self.items_sent[vbucket] += len(seqnos)
        if from_disk:
            self.items_from_disk += len(seqnos)
        if self.record_seqnos:
            self._seqnos.setdefault(vbucket, []).append(seqnos)

    @property
    def seqnos_sent(self) -> dict[int, list[int]]:
        """By vbucket: the seqnos of all items put on the wire, in order, over all streams."""
        return {v: np.concatenate(parts).tolist() for v, parts in self._seqnos.items()}

    @property
    def connections(self) -> dict[tuple[int, str], SendWindow]:
        """The flow control of open DCP connections, by node and name."""
        return {
            (node, name.decode("utf-8", "replace")): flow
            for (node, name), flow in self.flows.items()
        }

    def snapshot(self, disk_scans: int) -> "Counters":
        """Return a copy, with the counters of the vbuckets; the caller holds the bucket's lock."""
        copied = deepcopy(self)
        copied.disk_scans = disk_scans
        return copied

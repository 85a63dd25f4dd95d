"""The producer's counters: tests assert on them, and STAT answers them.

Written under the bucket's lock; ``snapshot()`` gives a copy that does not change any more.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dcp.server.model.send_window import SendWindow


@dataclass(frozen=True, slots=True)
class ConnectionCounters:
    """One open DCP connection's flow control."""

    window_bytes: int
    unacked_bytes: int
    peak_unacked_bytes: int
    buffer_acks: int


@dataclass(frozen=True, slots=True)
class CountersSnapshot:
    """All counters at one instant. Dictionaries keyed by vbucket lack vbuckets without events.

    ``connections`` is keyed by node and name. ``seqnos_sent`` lists the seqnos of all items put on
    the wire, in order, over all streams; ``items_from_disk`` is how many of them were read from
    disk, whatever their marker said. ``disk_scans``: how often streams of the vbuckets that are
    here began to read the disk, whatever they showed of it. ``peak_outbox_bytes``: the most answers
    that ever waited for one client. ``peak_stream_unacked_bytes``: the most that was outstanding of
    one stream with a window of its own. ``cursors_dropped``: how often a stream was sent back to
    the disk, as memory was short.

    More than 15 attributes: one is one figure.
    """

    items_sent: dict[int, int]
    seqnos_sent: dict[int, list[int]]
    items_from_disk: int
    disk_scans: int
    cursors_dropped: int
    streams_opened: dict[int, int]
    streams_refused: dict[int, int]
    connections: dict[tuple[int, str], ConnectionCounters]
    bytes_sent: int
    buffer_acks: int
    peak_unacked_bytes: int
    peak_stream_unacked_bytes: int
    peak_outbox_bytes: int
    noops_sent: int
    noops_answered: int
    connections_opened: int
    connections_refused: int
    connections_closed_for_errors: int
    dcp_connections_opened: int


@dataclass(slots=True)
class Counters:
    """The live counters of a cluster.

    More than 15 attributes: one is one figure. Written from outside: whoever does something counts
    it here, under the bucket's lock.
    """

    record_seqnos: bool = True
    items_sent: Counter[int] = field(default_factory=Counter)
    items_from_disk: int = 0
    cursors_dropped: int = 0
    streams_opened: Counter[int] = field(default_factory=Counter)
    streams_refused: Counter[int] = field(default_factory=Counter)
    flows: dict[tuple[int, bytes], SendWindow] = field(default_factory=dict)
    bytes_sent: int = 0
    buffer_acks: int = 0
    peak_unacked_bytes: int = 0
    peak_stream_unacked_bytes: int = 0
    peak_outbox_bytes: int = 0
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

    def snapshot(self, disk_scans: int) -> CountersSnapshot:
        """Return a copy, with the counters of the vbuckets; the caller holds the bucket's lock."""
        connections = {
            (node, name.decode("utf-8", "replace")): ConnectionCounters(
                flow.window_bytes, flow.outstanding_bytes, flow.peak_bytes, flow.acks
            )
            for (node, name), flow in self.flows.items()
        }
        return CountersSnapshot(
            items_sent=dict(self.items_sent),
            seqnos_sent={v: np.concatenate(parts).tolist() for v, parts in self._seqnos.items()},
            items_from_disk=self.items_from_disk,
            disk_scans=disk_scans,
            cursors_dropped=self.cursors_dropped,
            streams_opened=dict(self.streams_opened),
            streams_refused=dict(self.streams_refused),
            connections=connections,
            bytes_sent=self.bytes_sent,
            buffer_acks=self.buffer_acks,
            peak_unacked_bytes=self.peak_unacked_bytes,
            peak_stream_unacked_bytes=self.peak_stream_unacked_bytes,
            peak_outbox_bytes=self.peak_outbox_bytes,
            noops_sent=self.noops_sent,
            noops_answered=self.noops_answered,
            connections_opened=self.connections_opened,
            connections_refused=self.connections_refused,
            connections_closed_for_errors=self.connections_closed_for_errors,
            dcp_connections_opened=self.dcp_connections_opened,
        )

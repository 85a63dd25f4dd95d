"""Drops from a task's streams what the lake's filter leaves out, and what it has already.

A collection that is neither in the manifest nor began in these streams is kept: it may be newer
than the manifest, and in the log it costs no more than its bytes.

A version may pass ``since`` although the key's next version does not: a write may bring an older
CAS with it (XDCR, a restored backup). So a version that does not pass becomes a deletion. In a
vbucket's first snapshot it is dropped instead. That snapshot has one version of each key, unless
its marker announces the change history.

A vbucket with a start seqno drops all documents up to it, also when it is read again.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcp.lake.receive.arrow_columns import Mask
from dcp.lake.receive.dropped_policies import collection_of
from dcp.lake.receive.keys import key_columns, matching
from dcp.lake.rounds.round_plan import StreamPlan
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.protocol.events import SnapshotStarted, SystemEventReceived
from dcp.types import U16_MAX, U64_MAX
from dcp.wire.columns import DataColumns
from dcp.wire.vocabulary import REPEATING, Opcode


class WantedRows:
    """The filter of one task; learns of new collections from the events that pass by."""

    def __init__(self, wanted: DocumentFilter, streams: Collection[StreamPlan]) -> None:
        self.document_filter = wanted
        """Knows the collections that began in these streams, too."""
        self._rules = wanted.rules
        self._is_everything = wanted.fingerprint is None
        self._since_ns = wanted.rules.since_ns
        self._start = np.zeros(U16_MAX + 1, np.uint64)
        self._is_wanted = wanted.is_wanted
        self._first_end = np.zeros(U16_MAX + 1, np.uint64)
        """By vbucket, the end of its first snapshot; ``U64_MAX``: it is not known yet.

        0: the lake has the whole first snapshot, or a snapshot may repeat keys.
        """
        for stream in streams:
            position = stream.position
            if not position.complete_seqno:
                self._first_end[stream.vbucket] = position.snap_end if position.seqno else U64_MAX

    def documents(self, columns: DataColumns) -> DataColumns:
        if self._is_everything:
            return columns
        passes = self._passes(columns)
        passes &= columns.seqno > self._start[columns.vbucket]
        if self._since_ns:
            is_old = columns.cas < self._since_ns
            columns = _deleted(columns, is_old & passes & (columns.opcode == Opcode.DCP_MUTATION))
            passes &= ~is_old | (columns.seqno > self._first_end[columns.vbucket])
        return columns if passes.all() else columns.take(np.flatnonzero(passes))

    def drop_up_to(self, vbucket: int, seqno: int) -> None:
        """Ignore documents of a vbucket up to ``seqno``; called before those of its stream."""
        self._start[vbucket] = seqno

    def learn(self, event: SnapshotStarted | SystemEventReceived) -> None:
        """Learn of a new snapshot or collection, before the documents of the same delivery."""
        if isinstance(event, SnapshotStarted):
            if event.flags & REPEATING:
                self._first_end[event.vbucket] = 0
            elif self._first_end[event.vbucket] == U64_MAX:
                self._first_end[event.vbucket] = event.snapshot.end
            return
        found = self.document_filter.with_event(event)
        if found is not self.document_filter:
            self.document_filter, self._is_wanted = found, found.is_wanted

    def wants(self, event: SystemEventReceived) -> bool:
        collection_id = collection_of(event)
        return collection_id is None or self._is_wanted.get(collection_id, True)

    def _passes(self, columns: DataColumns) -> Mask:
        rules = self._rules
        unwanted = [each for each, is_wanted in self._is_wanted.items() if not is_wanted]
        passes = ~np.isin(columns.collection_id, unwanted)
        if rules.include_keys or rules.exclude_keys:
            keys, _ = key_columns(columns.key)
            if rules.include_keys:
                passes &= matching(keys, rules.include_keys)
            if rules.exclude_keys:
                passes &= ~matching(keys, rules.exclude_keys)
        return passes


def _deleted(columns: DataColumns, rows: Mask) -> DataColumns:
    if not rows.any():
        return columns
    value = pc.if_else(pa.array(rows), pa.scalar(b"", pa.binary()), columns.value)
    opcode, datatype = columns.opcode.copy(), columns.datatype.copy()
    opcode[rows], datatype[rows] = Opcode.DCP_DELETION, 0
    return replace(columns, opcode=opcode, datatype=datatype, value=value)

"""Counts the documents of each vbucket in a task."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp.lake.rounds.stream_result import StreamResult
from dcp.types import U16_MAX


class VbucketCounts:
    """Counters by vbucket: documents, bytes on the wire, escaped keys and undecodable values."""

    def __init__(self) -> None:
        self.rows = np.zeros(U16_MAX + 1, np.int64)
        self.frame_bytes = np.zeros(U16_MAX + 1, np.int64)
        self.largest_bytes = np.zeros(U16_MAX + 1, np.int64)
        self.escaped_keys = np.zeros(U16_MAX + 1, np.int64)
        self.undecodable_values = np.zeros(U16_MAX + 1, np.int64)

    def add(
        self,
        vbuckets: NDArray[np.uint16],
        frame_bytes: NDArray[np.uint32],
        document_bytes: NDArray[np.int64],
        key_bytes: pa.BinaryArray,
        detail: pa.StringArray,
    ) -> None:
        """Count documents, at least one; the last two are the columns of ``changes``.

        ``document_bytes`` are their stored sizes, for later readers.
        """
        # A vbucket's documents mostly follow one another: sums of such runs are soon made.
        starts = np.flatnonzero(np.diff(vbuckets, prepend=~vbuckets[:1]))
        which = vbuckets[starts]
        np.add.at(self.rows, which, np.diff(starts, append=len(vbuckets)))
        np.add.at(self.frame_bytes, which, np.add.reduceat(frame_bytes, starts, dtype=np.int64))
        np.maximum.at(self.largest_bytes, which, np.maximum.reduceat(document_bytes, starts))
        for column, counts in ((key_bytes, self.escaped_keys), (detail, self.undecodable_values)):
            if column.null_count < len(column):
                is_set = column.is_valid().to_numpy(zero_copy_only=False)
                np.add.at(counts, vbuckets[is_set], 1)

    def fill(self, result: StreamResult) -> None:
        vbucket = result.plan.vbucket
        result.rows = int(self.rows[vbucket])
        result.frame_bytes = int(self.frame_bytes[vbucket])
        result.largest_bytes = int(self.largest_bytes[vbucket])
        result.escaped_keys = int(self.escaped_keys[vbucket])
        result.undecodable_values = int(self.undecodable_values[vbucket])

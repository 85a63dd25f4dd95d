"""The counters of the embedded cluster, with the sent seqnos that tests compare."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dcp.server.model.counters import Counters


@dataclass(slots=True)
class ProducerCounters(Counters):
    """`Counters` that may keep every sent seqno, at 8 bytes each."""

    record_seqnos: bool = field(kw_only=True)
    _seqnos: dict[int, list[npt.NDArray[np.uint64]]] = field(default_factory=dict)

    def count_items(self, vbucket: int, seqnos: npt.NDArray[np.uint64], *, from_disk: bool) -> None:
        Counters.count_items(self, vbucket, seqnos, from_disk=from_disk)
        if self.record_seqnos:
            self._seqnos.setdefault(vbucket, []).append(seqnos)

    @property
    def seqnos_sent(self) -> dict[int, list[int]]:
        """Seqnos of all sent items by vbucket, in the order of sending, over all streams."""
        return {v: np.concatenate(parts).tolist() for v, parts in self._seqnos.items()}

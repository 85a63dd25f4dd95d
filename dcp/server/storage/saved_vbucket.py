"""The saved state of a vbucket beside its items, as JSON in batches of its log.

It is in those where something changed that the items do not tell, and in each compacted log: what
that leaves out would have told of CAS values and high seqnos. Whatever else a vbucket is can be
read from its items. The numbers of the manifests are those of the bucket's ``ManifestTable``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.server.model.manifest import Manifest
from dcp.server.model.manifest_table import ManifestTable
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import OsFile
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import VbucketState

STATE_VERSION: Final = 3
_WITHOUT_PURGE_SEQNO: Final = 2


@dataclass(frozen=True, slots=True)
class VbucketHome:
    """The place of a vbucket's data on disk, and the bucket's part of its saved state.

    ``number_of`` returns the number of a manifest, after it was saved; raises OSError where that
    cannot be. ``remove`` takes the file away, now or soon: nobody writes it any more.
    """

    file: OsFile
    first_uuid: int
    manifests: ManifestTable
    number_of: Callable[[Manifest], int]
    remove: Callable[[], object]


@dataclass(frozen=True, slots=True)
class SavedVbucket:
    """A vbucket without its items.

    ``last_cas`` is the last CAS value that was given; ``manifests`` are pairs of the seqno of a
    system event and the number of the manifest from it on; ``high_seqnos`` are by collection.
    ``whole_seqno`` is None where every disk snapshot is a state that the vbucket had; of what a
    replica received, where some are parts of one, it is the end of the last that is: nothing before
    it is known to be. ``learned_purge_seqno`` is that of the vbucket which this was a copy of: no
    tombstones came up to there. (Version 2 did not have it; a log of that version is read as if
    none had gone.)
    """

    state: VbucketState
    failover_log: FailoverLog
    base_seqno: int = 0
    last_cas: int = 0
    manifests: tuple[tuple[int, int], ...] = ()
    high_seqnos: Mapping[int, int] | None = None
    whole_seqno: int | None = None
    learned_purge_seqno: int = 0

    @property
    def lasting(self) -> object:
        """The part of it that no item tells: only a change of that must be saved with the items."""
        return (
            self.state,
            self.failover_log,
            self.base_seqno,
            self.manifests,
            self.whole_seqno,
            self.learned_purge_seqno,
        )

    @property
    def manifest_numbers(self) -> frozenset[int]:
        """The numbers of the manifests that it names."""
        return frozenset(number for _, number in self.manifests)

    def encode(self) -> bytes:
        """Return the JSON."""
        tree = {
            "version": STATE_VERSION,
            "state": int(self.state),
            "log": [[entry.vb_uuid, entry.seqno] for entry in self.failover_log.entries],
            "base": self.base_seqno,
            "cas": self.last_cas,
            "manifests": self.manifests,
            "highs": list((self.high_seqnos or {}).items()),
            "whole": self.whole_seqno,
            "purge": self.learned_purge_seqno,
        }
        return json.dumps(tree, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, vbucket: int) -> "SavedVbucket":
        """Return what ``encode`` made the bytes of.

        Raises:
            DiskFormatError: another version of dcplake wrote it.
        """
        tree = json.loads(data)
        if tree["version"] not in (STATE_VERSION, _WITHOUT_PURGE_SEQNO):
            raise DiskFormatError(
                f"vbucket {vbucket}: found state version {tree['version']}, "
                f"expected {STATE_VERSION}"
            )
        return cls(
            VbucketState(tree["state"]),
            FailoverLog(tuple(FailoverEntry(*entry) for entry in tree["log"])),
            tree["base"],
            tree["cas"],
            tuple((seqno, number) for seqno, number in tree["manifests"]),
            dict(tree["highs"]),
            tree["whole"],
            tree.get("purge", 0),
        )

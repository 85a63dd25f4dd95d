"""The state of a vbucket as JSON, which batches of its disk log contain beside the items.

A batch has it only if something changed that the items do not show, and each compacted disk log has
it. Everything else about a vbucket follows from its items.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dcp.records import brief, read
from dcp.server.model.manifest import Manifest
from dcp.server.model.manifest_table import ManifestTable
from dcp.server.storage.disk_file import OsFile
from dcp.types import FailoverLog
from dcp.wire.vocabulary import VbucketState


@dataclass(frozen=True, slots=True)
class VbucketHome:
    """The place of a vbucket on disk, and the data of the bucket that its saved state needs."""

    file: OsFile
    first_uuid: int
    """Branch uuid to start with, if the file is new."""
    manifests: ManifestTable
    number_of: Callable[[Manifest], int]
    """Saves a manifest in bucket.json and returns its number; raises OSError if that fails."""
    remove: Callable[[], object]
    """Schedules the removal of the file; nobody may write it afterwards."""


@dataclass(frozen=True, slots=True)
class SavedVbucket:
    """A vbucket without its items."""

    state: VbucketState
    failover_log: FailoverLog
    base_seqno: int = 0
    last_cas: int = 0
    """The last CAS value that the vbucket assigned."""
    manifests: tuple[tuple[int, int], ...] = ()
    """Seqno of each system event, and the number of its manifest in the ``ManifestTable``."""
    high_seqnos: Mapping[int, int] = field(default_factory=dict)
    """By collection."""
    complete_seqno: int | None = None
    """End of the last complete snapshot, if a replica has parts of one on disk. None: every disk
    snapshot is a state that the vbucket had.
    """
    learned_purge_seqno: int = 0
    """The active's purge seqno: a replica got no tombstones up to here."""

    @property
    def lasting(self) -> "SavedVbucket":
        """The part that no item shows; a change of it must be saved."""
        return replace(self, last_cas=0, high_seqnos={})

    @property
    def manifest_numbers(self) -> frozenset[int]:
        return frozenset(number for _, number in self.manifests)

    def encode(self) -> bytes:
        return json.dumps(brief(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "SavedVbucket":
        """Return the state that ``encode`` wrote."""
        return read(cls, json.loads(data))


class StateOnDisk:
    """Encodes the state of a vbucket for its disk log, and decides when a batch must include it.

    The vbucket sets ``state_at`` after it has opened its disk log.
    """

    def __init__(self, written: Callable[[], bytes]) -> None:
        self.state_at: Callable[[int], SavedVbucket | None] = lambda _: None
        """Returns the state to save with the items up to a seqno; None: save none."""
        self._written = written
        self._encoded: tuple[bytes, object] = b"", None

    def encoded_at(self, seqno: int) -> bytes:
        state = self.state_at(seqno)
        return b"" if state is None else self._encode(state)

    def news_at(self, seqno: int) -> bytes:
        """Return the encoded state; empty if the items alone show everything that changed."""
        state = self.state_at(seqno)
        encoded, lasting = self._encoded
        # The state that was encoded last may never have reached the disk.
        if state is None or (self._written() == encoded and state.lasting == lasting):
            return b""
        return self._encode(state)

    def _encode(self, state: SavedVbucket) -> bytes:
        self._encoded = state.encode(), state.lasting
        return self._encoded[0]

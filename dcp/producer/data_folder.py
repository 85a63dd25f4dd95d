"""The folder of a bucket that survives a restart.

    lock                   held by the process that serves the bucket
    bucket.json            what the vbuckets share; replaced as a whole
    vb_0.log ...           one log for each vbucket (``disk_batch.py``)
    vb_0.node_2.log ...    one for each copy of a vbucket, by its node

A copy that becomes the vbucket takes the name of the vbucket's log. ``bucket.json`` tells where
each vbucket ended when the last process stopped in good order; while one runs it does not, so that
after a crash every active vbucket begins a branch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError, SourceError
from dcp.file_lock import FileLock, LockHeldError
from dcp.producer.disk_file import OsFile
from dcp.producer.manifest_table import Row

FOLDER_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """What the vbuckets of a bucket share, as ``bucket.json`` has it.

    ``first_uuids`` begin the failover logs of vbuckets that have no log file. ``copies`` are the
    rows of the map that name the nodes of each vbucket's copies. ``manifest`` is the number of the
    bucket's own one among ``manifests``. ``starts`` counts the processes that served it.
    ``ended_at`` are the vbuckets' high seqnos at a stop in good order, else None.
    """

    bucket: str
    vbuckets: int
    nodes: int
    uuid: str
    first_uuids: Sequence[int]
    map_rev: int
    owners: Sequence[int]
    members: Sequence[bool]
    copies: Sequence[Sequence[int]]
    manifest: int
    manifests: Sequence[Row]
    starts: int = 0
    ended_at: Sequence[int] | None = None


class DataFolder:
    """A bucket's folder, locked until ``close``."""

    def __init__(self, path: Path) -> None:
        """Make the folder, if it is not there, and lock it.

        Raises:
            SourceError: another process serves from it; names the process.
            ConfigError: it cannot be made or written.
        """
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / "lock", "dcplake serve")
        except LockHeldError as held:
            raise SourceError(
                f"data folder {path}: another producer serves from it ({held.holder}), "
                "expected to be the only one; stop it, or choose another folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"data folder {path}: {error.strerror}") from None
        self._record = OsFile(path / "bucket.json")

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def file(self, vbucket: int) -> OsFile:
        """Return the file of a vbucket's log."""
        return OsFile(self._path / f"vb_{vbucket}.log")

    def copy_file(self, node: int, vbucket: int) -> OsFile:
        """Return the file of a copy's log."""
        return OsFile(self._path / f"vb_{vbucket}.node_{node + 1}.log")

    def load(self, bucket: str, vbuckets: int, nodes: int) -> BucketRecord | None:
        """Return the record of this bucket; None in a folder that has none yet.

        Raises:
            ConfigError: the folder is another bucket's, or was made by another version of dcplake,
                or for another number of vbuckets or nodes.
        """
        if not (size := self._record.size_bytes):
            if any(self._path.glob("vb_*.log")):
                raise ConfigError(
                    f"data folder {self._path}: found logs of vbuckets without a bucket.json, "
                    "expected both or none"
                )
            return None
        tree = json.loads(bytes(self._record.read(0, size)))
        self._require("format version", tree.pop("version"), FOLDER_VERSION)
        record = BucketRecord(**tree)
        self._require("bucket", record.bucket, bucket)
        self._require("vbuckets", record.vbuckets, vbuckets)
        self._require("nodes", record.nodes, nodes)
        return record

    def _require(self, name: str, found: object, expected: object) -> None:
        if found != expected:
            raise ConfigError(
                f"data folder {self._path}: {name}: found {found!r}, expected {expected!r}"
            )

    def save(self, record: BucketRecord) -> None:
        """Put a record in place of the one before, durably.

        Raises:
            OSError: it cannot be written; the one before is there.
        """
        self._record.replace([json.dumps({"version": FOLDER_VERSION, **asdict(record)}).encode()])

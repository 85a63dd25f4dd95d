"""The folder of a bucket that survives a restart.

    lock                   held by the process that serves the bucket
    bucket.json            what the vbuckets share; replaced as a whole
    vb_0.log ...           one log for each vbucket (``disk_batch.py``)
    vb_0.1.log ...         one for each copy of a vbucket (``log_names.py``)

``bucket.json`` says which log is whose, and where each vbucket ended when the last process stopped
in good order; while one runs it does not, so that after a crash every active vbucket begins a
branch.
"""

from pathlib import Path

from dcp.errors import ConfigError, SourceError
from dcp.file_lock import LockHeldError, take_lock
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.disk_file import OsFile


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
            path.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = take_lock(path / "lock", "dcplake serve")
        except LockHeldError as held:
            raise SourceError(
                f"data folder {path}: another producer serves from it ({held.holder}), "
                "expected to be the only one; stop it, or choose another folder"
            ) from None
        except OSError as error:
            found = "a file" if path.is_file() else f"that it cannot be made ({error.strerror})"
            raise ConfigError(
                f"data folder {path}: found {found}, expected a folder that this user can write"
            ) from None
        self._record = OsFile(path / "bucket.json")

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def file(self, name: str) -> OsFile:
        """Return the file of a log."""
        return OsFile(self._path / name)

    def logs(self) -> set[str]:
        """Return the names of all logs that are there."""
        return {path.name for path in self._path.glob("vb_*.log")}

    def load(self, bucket: str, vbuckets: int, nodes: int) -> BucketRecord | None:
        """Return the record of this bucket; None in a folder that has none yet.

        Raises:
            ConfigError: the folder is another bucket's, or was made by another version of dcplake,
                or for another number of vbuckets or nodes, or its record is damaged.
            OSError: the record cannot be read.
        """
        if not (size := self._record.size_bytes):
            if self.logs():
                raise ConfigError(
                    f"data folder {self._path}: found logs of vbuckets without a bucket.json, "
                    "expected both or none"
                )
            return None
        try:
            record = BucketRecord.decode(bytes(self._record.read(0, size)))
        except ConfigError as error:
            raise ConfigError(f"{self._record}: {error}") from None
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
        self._record.replace([record.encode()])

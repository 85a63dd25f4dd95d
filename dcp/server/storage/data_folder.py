"""The folder from which a bucket continues after a restart.

    lock                   locked by the process that serves the bucket
    bucket.json            what the vbuckets share; each save replaces the file
    vb_0.log ...           one disk log per vbucket (``disk_batch.py``)
    vb_0.1.log ...         one disk log per replica (``disk_log_names.py``)

``bucket.json`` assigns the disk logs to vbuckets and replicas. After a clean stop it also has the
vbuckets' high seqnos. Without them the last process crashed, so every active vbucket begins a
branch.
"""

from pathlib import Path

from dcp.errors import ConfigError, SourceError
from dcp.file_lock import LockHeldError, take_lock
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.disk_file import OsFile


class DataFolder:
    """A bucket's folder; no other process can serve from it until ``close``."""

    def __init__(self, path: Path, named: str, holder: str) -> None:
        """Create the folder if necessary, and lock it until ``close``.

        Messages begin with ``named`` (`Section.named`); ``holder`` names this process to others.

        Raises SourceError, with the other process's id, if the folder is locked, and ConfigError if
        it cannot be created or written.
        """
        self._path, self._text = path, f"{named} {path}"
        try:
            # Documents are in it.
            path.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = take_lock(path / "lock", holder)
        except LockHeldError as held:
            raise SourceError(
                f"{self._text}: another process serves from it ({held.holder}), "
                "expected to be the only one; stop it, or choose another folder"
            ) from None
        except OSError as error:
            found = "a file" if path.is_file() else f"that it cannot be made ({error.strerror})"
            raise ConfigError(
                f"{self._text}: found {found}, expected a folder that this user can write"
            ) from None
        self._record = OsFile(path / "bucket.json")

    def close(self) -> None:
        self._lock.release()

    def file(self, name: str) -> OsFile:
        return OsFile(self._path / name)

    def disk_logs(self) -> set[str]:
        return {path.name for path in self._path.glob("vb_*.log")}

    def load(self, bucket: str, vbuckets: int, nodes: int) -> BucketRecord | None:
        """Return the bucket's record; None if the folder is new.

        Raises ConfigError if the record is damaged, or its bucket, format or numbers differ from
        the arguments. Raises OSError if it cannot be read.
        """
        if not (size := self._record.size_bytes):
            # Nobody can tell which vbuckets these disk logs belong to.
            if self.disk_logs():
                raise ConfigError(
                    f"{self._text}: found disk logs of vbuckets without a bucket.json, "
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
            raise ConfigError(f"{self._text}: {name}: found {found!r}, expected {expected!r}")

    def save(self, record: BucketRecord) -> None:
        """Replace the record durably.

        Raises OSError if that fails; the old record is then still there.
        """
        self._record.replace([record.encode()])

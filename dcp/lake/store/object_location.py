"""The location of a table in an object store, which obstore accesses."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

import pyarrow as pa

from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.memory import MEBIBYTE, UPLOAD_PARTS
from dcp.lake.store.at_once import MOST_AT_ONCE, at_once
from dcp.lake.store.bucket_store import BucketAccess, bucket_of
from dcp.lake.store.failures import NO_BUCKET
from dcp.lake.store.table_location import (
    DELTA_LOG,
    DELTA_LOG_FILE,
    LEFT_OVER_SECONDS,
    CommitFile,
    TableLocation,
    commit_name,
)
from dcp.lake.store.trial import StoreTrial, put_if_absent, require_conditional_writes

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_GATHERED_BYTES: Final = MEBIBYTE


class Upload:
    """Uploads the bytes that are written to `file`; cancels the upload if its block raises.

    It holds at most `UPLOAD_PARTS` + 1 parts, and the bytes of one write. A large write stays in
    memory until its last part is sent.
    """

    def __init__(self, store: "ObjectStore", path: str, part_bytes: int) -> None:
        """Open the upload. The first request follows when a part is full, or at the end."""
        import obstore

        self._writer = obstore.open_writer(
            store, path, buffer_size=part_bytes, max_concurrency=UPLOAD_PARTS
        )
        self._part_bytes = part_bytes
        self._takes_more = True
        # Parquet pages may be small, and each write takes obstore's lock and the GIL.
        self.file = pa.BufferedOutputStream(pa.PythonFile(self, "w"), _GATHERED_BYTES)

    def write(self, data: "bytes | pa.Buffer") -> int:
        """Pass bytes on; pyarrow calls this. It waits for a slow store.

        It ignores bytes after the end or a failure, because pyarrow flushes its buffer when it is
        closed or freed.
        """
        view = memoryview(data).cast("B")  # obstore refuses the signed bytes of pyarrow's buffers
        if not self._takes_more:
            return len(view)
        self._takes_more = False
        for begin in range(0, len(view), self._part_bytes):
            self._writer.write(view[begin : begin + self._part_bytes])
        self._takes_more = True
        return len(view)

    closed = False
    """pyarrow requires this attribute; only the end of the block matters."""

    def flush(self) -> None:
        """Do nothing: a part is sent when it is full."""

    def close(self) -> None:
        """Do nothing: the end of the block decides whether the file is complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._takes_more = False
        self._writer.__exit__(kind, error, trace)


_COMMIT: Final = re.compile(r"(\d{20})\.json")

_TEMPORARY: Final = re.compile(r"\..*\.(?:tmp|dcplake-probe)")
"""The names of Spark's temporary files, and of the files that test the store."""


@dataclass(frozen=True, slots=True)
class ObjectLocation(TableLocation):
    is_remote = True
    url: str
    way: Mapping[str, str] = field(repr=False, compare=False)
    """Options to access the store. They name where secrets are, but hold none."""

    @property
    def uri(self) -> str:
        """The URL for delta-rs, which would end a path at ``#`` or ``?``."""
        scheme, bucket, path = parts_of(self.url)
        return f"{scheme}://{bucket}/{quote(path)}"

    def __str__(self) -> str:
        return self.url

    @property
    def options(self) -> dict[str, str]:
        """Reads the secrets at each access; raises like `BucketAccess.options`."""
        return self._bucket.options()

    @property
    def _bucket(self) -> BucketAccess:
        scheme, bucket, _ = parts_of(self.url)
        return bucket_of(f"{scheme}://{bucket}", self.way)

    @property
    def _store(self) -> "ObjectStore":
        return self._bucket.store

    def _path(self, *names: str) -> str:
        return "/".join((parts_of(self.url).path, *names))

    def _commit_path(self, version: int) -> str:
        return self._path(DELTA_LOG, commit_name(version))

    def has_delta_log(self) -> bool:
        """Return whether the Delta log has a file; folder objects and hidden ones do not count."""
        delta_log = self._path(DELTA_LOG, "")
        below = (path.removeprefix(delta_log) for path, _ in self._below(delta_log))
        return any(map(DELTA_LOG_FILE.fullmatch, below))

    def has_data(self) -> bool:
        return any(path.endswith(".parquet") for path, _ in self._below(self._path()))

    def commits_from(self, version: int) -> dict[int, Hashable]:
        import obstore  # a lake on this machine does not need it

        just_before = self._commit_path(version)[:-1]  # a listing begins after its offset
        listed = obstore.list(self._store, self._path(DELTA_LOG), offset=just_before).collect()
        named = ((_COMMIT.fullmatch(each["path"].rpartition("/")[2]), each) for each in listed)
        return {
            int(name[1]): (each["e_tag"], each["last_modified"])
            for name, each in named
            if name and int(name[1]) >= version  # some servers ignore the offset
        }

    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Request several files at a time."""
        rest = iter(versions)
        while few := list(islice(rest, MOST_AT_ONCE)):
            for found in at_once(self._read_commit, few):
                if found is None:
                    return
                yield found

    @contextmanager
    def writing(self, name: str, part_bytes: int) -> Iterator[pa.NativeFile]:
        with Upload(self._store, self._path(name), part_bytes) as upload:
            yield upload.file
            upload.file.close()

    def put(self, name: str, content: bytes) -> None:
        import obstore

        obstore.put(self._store, self._path(name), content)

    def get(self, name: str) -> bytes | None:
        import obstore

        try:
            return bytes(obstore.get(self._store, self._path(name)).bytes())
        except FileNotFoundError:
            return None

    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        import obstore

        def size(name: str) -> int | None:
            try:
                return obstore.head(self._store, self._path(name))["size"]
            except FileNotFoundError:
                return None

        return at_once(size, names)

    def can_commit(self) -> bool:
        """Test that the store refuses to overwrite, once in a process.

        Raises:
            SetupError: the store does not answer, or denies access.
            LakeError: the store overwrites existing files.
        """
        require_conditional_writes(self._store, self.trial())
        return True

    def trial(self) -> StoreTrial:
        where = self._bucket.url
        if "endpoint" in self.way:
            where += f" at {self.way['endpoint']}"
        return StoreTrial(self._store, self._path(DELTA_LOG), where)

    def commit(self, version: int, content: bytes) -> None:
        """Write the commit's file on the condition that none exists; the store decides.

        Raises:
            FileExistsError: another commit has that version.
        """
        try:
            # Each commit has a unique id. If the answer is lost, the content shows whose it is.
            put_if_absent(self._store, self._commit_path(version), content)
        except FileExistsError as taken:
            raise FileExistsError(f"{self.url}/{DELTA_LOG}/{commit_name(version)}") from taken

    def tidy_delta_log(self) -> None:
        import obstore

        oldest = datetime.now(UTC) - timedelta(seconds=LEFT_OVER_SECONDS)
        delta_log = self._path(DELTA_LOG, "")
        # Hidden files sort before the digits of commits, so the listing can end there.
        before_commits = takewhile(lambda each: each[0] < f"{delta_log}0", self._below(delta_log))
        left = [
            path
            for path, written in before_commits
            if _TEMPORARY.fullmatch(path.removeprefix(delta_log)) and written < oldest
        ]
        if left:
            obstore.delete(self._store, left)

    def _read_commit(self, version: int) -> CommitFile | None:
        import obstore

        try:
            found = obstore.get(self._store, self._commit_path(version))
            written = found.meta["last_modified"].timestamp()
            return CommitFile(version, int(written * 1000), bytes(found.bytes()))
        except FileNotFoundError as missing:
            if NO_BUCKET.search(str(missing)):
                raise
            return None

    def _below(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        import obstore

        for page in obstore.list(self._store, prefix, chunk_size=1000):
            for each in page:
                yield each["path"], each["last_modified"]

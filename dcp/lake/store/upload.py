"""A file on its way into an object store, in parts as it is written."""

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from dcp.lake.config.memory import MEBIBYTE, UPLOAD_PARTS

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_GATHERED_BYTES: Final = MEBIBYTE


class Upload:
    """Uploads the bytes that are written to `file`; gives the upload up if its block raises.

    The store is then told to forget its parts. Holds `UPLOAD_PARTS` parts, less than a part more,
    and the bytes of one write. A large write stays until its last part has left.
    """

    def __init__(self, store: "ObjectStore", path: str, part_bytes: int) -> None:
        """Asks nothing of the store before the first part is full, or the end."""
        import obstore

        self._writer = obstore.open_writer(
            store, path, buffer_size=part_bytes, max_concurrency=UPLOAD_PARTS
        )
        self._part_bytes = part_bytes
        self._takes_more = True
        # Pages of a file of Parquet may be small; each write takes obstore's lock, and Python's.
        self.file = pa.BufferedOutputStream(pa.PythonFile(self, "w"), _GATHERED_BYTES)

    def write(self, data: "bytes | pa.Buffer") -> int:
        """Hand on bytes, as pyarrow calls it; waits for a slow store.

        Ignores bytes after the end or a failure: pyarrow writes its gathered bytes when it is
        closed, or freed.
        """
        view = memoryview(data).cast("B")  # those of pyarrow are signed, which obstore refuses
        if not self._takes_more:
            return len(view)
        self._takes_more = False
        for begin in range(0, len(view), self._part_bytes):
            self._writer.write(view[begin : begin + self._part_bytes])
        self._takes_more = True
        return len(view)

    closed = False
    """pyarrow asks; only the end of the block counts."""

    def flush(self) -> None:
        """Do nothing: a part leaves when it is full."""

    def close(self) -> None:
        """Do nothing: the end of the block says whether the file is complete."""

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

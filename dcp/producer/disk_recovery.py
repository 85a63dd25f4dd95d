"""Opening a vbucket's log: every batch is read up to the first that is not whole.

A crash leaves a part of the batch that was being written: the file is cut there. Nothing was
promised of that batch. A damaged batch in the middle loses what follows it too; the warning says
how much.
"""

import logging
from dataclasses import dataclass

from dcp.producer.disk_batch import (
    FILE_HEADER_BYTES,
    BrokenBatchError,
    read_batch,
    read_generation,
)
from dcp.producer.disk_contents import Contents
from dcp.producer.disk_file import DiskFile

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a file held; ``size_bytes`` is 0 where the file has to be made."""

    contents: Contents
    generation: int
    size_bytes: int


def recover(file: DiskFile, vbucket: int) -> Recovered:
    """Read a log, and cut from its end what is no whole batch.

    Raises:
        DiskFormatError: this is no log, of another format version, or another vbucket's.
    """
    contents, end = Contents(), file.size_bytes
    if end < FILE_HEADER_BYTES:
        if end:
            _LOG.warning("%s: %d bytes are too few for a log: starting with none", file, end)
        return Recovered(contents, 1, 0)
    generation = read_generation(file, vbucket)
    offset = FILE_HEADER_BYTES
    while offset < end:
        try:
            batch = read_batch(file, offset, end, generation)
        except BrokenBatchError as error:
            _LOG.warning(
                "%s: %s: cut at byte %d, %d bytes are lost; vbucket %d goes on from seqno %d",
                file,
                error,
                offset,
                end - offset,
                vbucket,
                contents.persisted_seqno,
            )
            file.append(offset, ())
            break
        contents.apply(batch, offset)
        offset += batch.size_bytes
    return Recovered(contents, generation, offset)

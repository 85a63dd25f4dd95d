"""The record of a key that a rollback took back: a row of the table ``undone``."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import pyarrow as pa

from dcp.lake.tables.applied_version import Version
from dcp.lake.tables.vbucket_state import Round, Vbucket
from dcp.records import Record


@dataclass(frozen=True, slots=True)
class DocumentState:
    """A row of a replica, in short."""

    seqno: int
    vb_uuid: int
    epoch: Annotated[int, pa.int32()]
    cas: int
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class UndoneKey(Record):
    """A replica has one for each of its keys that a rollback took back."""

    table: str
    version: Version
    """The version of the apply that took the key back."""
    restored_version: Version
    """The version that its row comes from; 0: the empty table, -1: the vbucket was replaced."""
    round: Round
    time: datetime
    vbucket: Vbucket
    fork_seqno: int
    """Rows above this seqno are undone."""
    key: str
    key_bytes: bytes | None
    before: DocumentState | None
    """None if the key had no document: it was deleted on the dead branch."""
    after: DocumentState | None
    """None if the key has no document: it is not on the live history."""

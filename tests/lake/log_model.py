"""A small model of a bucket and of the rounds that read it: the oracle of the lake's tests.

It writes snapshots of mutations, deletions and expirations into vbuckets, hands them out round by
round (a round may end inside a snapshot), and knows what each vbucket held at any seqno.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import LARGE_DOCUMENT_BYTES, ROW_BUDGET, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import applied_to_batch
from dcp.lake.change_log.changes import append_round
from dcp.lake.receive.keys import key_string
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.round_record import states_to_batch
from dcp.lake.tables.schema import CHANGES
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from tests.lake.given_rows import given_rows
from tests.lake.memory_store import MemoryStore

Documents = dict[tuple[int, str], tuple[int, int, bytes | None]]
"""(vbucket, key) -> (seqno, cas, value) of the documents."""


@dataclass(frozen=True)
class Item:
    seqno: int
    key: bytes
    kind: str
    value: bytes | None
    cas: int
    collection_id: int = 0


@dataclass
class ModelVbucket:
    vbucket: int
    first_seqno: int
    state: LakeVbucketState = field(init=False)
    items: list[Item] = field(default_factory=list)
    snapshot: tuple[int, int] | None = None  # the one being read
    unread: list[Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = LakeVbucketState.beginning(self.vbucket)

    @property
    def uuid(self) -> int:
        return 2**64 - 1 - self.vbucket

    @property
    def next_seqno(self) -> int:
        return self.items[-1].seqno + 1 if self.items else self.first_seqno


class LogModel:
    def __init__(
        self,
        lake: LakeTables,
        seed: int,
        *,
        keys: int = 30,
        first_seqnos: dict[int, int] | None = None,
    ) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.keys = [self._key(number) for number in range(keys)]
        first = first_seqnos or {}
        count = lake.identity.vbucket_count
        self.vbuckets = [ModelVbucket(vb, first.get(vb, 1)) for vb in range(count)]
        self.round = 0
        self.complete: dict[int, dict[int, int]] = {0: dict.fromkeys(range(count), 0)}

    def _key(self, number: int) -> bytes:
        odd = [
            b"",
            b"\0",
            b"\xff\x00key",
            b"\\x00",
            b"it's ${x} \\ \n",
            "Ä\U0001f600".encode(),
            b"k" * 250,
        ]
        return odd[number] if number < len(odd) else b"key_%d" % number

    def write_snapshot(self, vb: ModelVbucket, items: int, collection_id: int = 0) -> None:
        """Write a snapshot with ``items`` different keys; the rounds will read it."""
        for key in self.random.sample(self.keys, items):
            kind = self.random.choice(
                ("mutation", "mutation", "mutation", "deletion", "expiration")
            )
            seqno = vb.next_seqno + self.random.randrange(3)
            value = b'{"n": %d}' % seqno if kind == "mutation" else None
            cas = 2**63 + self.random.randrange(2**62)
            item = Item(seqno, key, kind, value, cas, collection_id)
            vb.items.append(item)
            vb.unread.append(item)
        vb.snapshot = (vb.unread[0].seqno, vb.unread[-1].seqno)

    def read(self, vb: ModelVbucket, most: int, round_number: int) -> list[dict[str, Any]]:
        """Read up to ``most`` items of the vbucket's snapshot; completes it where it ends."""
        taken, vb.unread = vb.unread[:most], vb.unread[most:]
        if not taken:
            return []
        assert vb.snapshot is not None
        seqno = taken[-1].seqno
        if vb.unread:
            start, end = vb.snapshot
            held = vb.state.complete_seqno
            position = Position(vb.uuid, seqno, min(start, held), end, held)
        else:
            position = Position.complete_at(vb.uuid, seqno)
        vb.state = vb.state.advanced(
            round_number,
            position,
            brought_rows=True,
            failover_log=FailoverLog((FailoverEntry(vb.uuid, 0),)),
        )
        return [self._row(vb, item, round_number) for item in taken]

    def _row(self, vb: ModelVbucket, item: Item, round_number: int) -> dict[str, Any]:
        text = key_string(item.key)
        return {
            "round": round_number,
            "epoch": vb.state.epoch,
            "vbucket": vb.vbucket,
            "kind": item.kind,
            "seqno": item.seqno,
            "vb_uuid": vb.uuid,
            "collection_id": item.collection_id,
            "key": text,
            "key_bytes": item.key if text.startswith("\\x") else None,
            "cas": item.cas,
            "rev": 1,
            "flags": 2**32 - 1,
            "expiry": 0,
            "datatype": 1,
            "value": item.value,
        }

    def random_rows(self, round_number: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for vb in self.vbuckets:
            if self.random.random() < 0.4:
                continue  # nothing of this vbucket in this round
            if not vb.unread:
                self.write_snapshot(vb, self.random.randint(1, 8))
            rows += self.read(vb, self.random.choice((1, 3, 100)), round_number)
        self.random.shuffle(rows)
        return rows

    def next_round(
        self, rows: list[dict[str, Any]] | None = None, applied: tuple[AppliedVersion, ...] = ()
    ) -> pa.Table:
        """Return the next round's rows: given ones, or random ones; with the position vector."""
        number = self.round + 1
        items = self.random_rows(number) if rows is None else rows
        self.round = number
        self.complete[number] = {vb.vbucket: vb.state.complete_seqno for vb in self.vbuckets}
        has_spark = not isinstance(self.lake.store, MemoryStore)
        status = status_row(number, may_be_large=has_spark)
        return pa.Table.from_batches(
            [
                pa.RecordBatch.from_pylist([*items, status], schema=CHANGES),
                states_to_batch([vb.state for vb in self.vbuckets], number),
                applied_to_batch(applied, number),
            ]
        )

    def commit(self, table: pa.Table, writer_id: str = "writer-1") -> TableCommit:
        return commit_rows(self.lake, table, self.round, writer_id)

    def documents_at(self, complete: dict[int, int], collection_id: int = 0) -> Documents:
        """Return what each vbucket held at the given seqno."""
        documents: Documents = {}
        for vb in self.vbuckets:
            for item in vb.items:
                if item.seqno > complete[vb.vbucket] or item.collection_id != collection_id:
                    continue
                if item.kind == "mutation":
                    place = (vb.vbucket, key_string(item.key))
                    documents[place] = (item.seqno, item.cas, item.value)
                else:
                    documents.pop((vb.vbucket, key_string(item.key)), None)
        return documents


def commit_rows(
    lake: LakeTables, rows: pa.Table, round_number: int, writer_id: str, *, verify: bool = True
) -> TableCommit:
    """Commit the rows of a round as `run_round` does: in files of the log, if it takes them."""
    given = given_rows(lake, rows)
    return append_round(lake, given, round_number, writer_id, verify=verify)


def status_row(number: int, *, may_be_large: bool = True) -> dict[str, Any]:
    """Return what tells how large documents are: in each fifth round too large for the driver."""
    is_large = may_be_large and number % 5 == 0
    largest_bytes = LARGE_DOCUMENT_BYTES + (1 if is_large else -1)
    told = {"outcome": "reached", "largest_bytes": largest_bytes}
    return {"round": number, "kind": "status", "vbucket": 0, "detail": json.dumps(told)}


def apply_pending(
    lake: LakeTables,
    replicas: Iterable[ReplicaTable],
    to_round: int,
    writer_id: str,
    *,
    budget: RowBudget = ROW_BUDGET,
) -> list[AppliedVersion]:
    """Bring every replica table to ``to_round``; return the versions that this made."""
    made = []
    for replica in replicas:
        plan = plan_merge(lake, replica, to_round, budget)
        if plan is not None:
            made.append(run_apply(lake, plan, writer_id))
    return made


def read_documents(lake: LakeTables, query: str) -> Documents:
    """Return what Spark finds by a query over a replica."""
    columns = "vbucket, key, seqno, cas, value"
    return documents_of(lake.spark.sql(f"SELECT {columns} FROM ({query})").toArrow())


def documents_of(table: pa.Table) -> Documents:
    """Return the rows of a replica; fails where a key is there twice."""
    documents: Documents = {}
    for row in table.to_pylist():
        place = (row["vbucket"], row["key"])
        assert place not in documents, f"{place} is there twice"
        documents[place] = (int(row["seqno"]), int(row["cas"]), row["value"])
    return documents

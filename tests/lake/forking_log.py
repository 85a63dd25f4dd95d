"""A log whose vbuckets fork at random: what a consumer could have written, without a producer.

Each vbucket knows the items of its live history; a rollback cuts it and goes on differently. The
rounds are committed to a lake in memory, with what the vbucket held at each round remembered.
"""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from dcp.lake.apply.audit import write_audit
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.change_log.applied import applied_to_batch, replica_status, unindexed_applied
from dcp.lake.change_log.changes import append_round
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import DOCS, ensure_replicas
from dcp.lake.tables.round_record import states_to_batch
from dcp.lake.tables.schema import CHANGES
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from tests.lake.given_rows import given_rows
from tests.lake.watched_lake import Row, Version, WatchedLake

_SMALL: Final = '{"outcome": "reached", "largest_bytes": 1000}'
"""The report of a stream that brought no large document."""
Documents = dict[str, int]
"""Key -> the unique number (cas) of its newest mutation."""


@dataclass
class ForkingVbucket:
    vbucket: int
    state: LakeVbucketState
    log: FailoverLog
    items: list[Row] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # live complete seqnos
    snapshot_end: int = 0

    def documents(self, seqno: int) -> Documents:
        found: Documents = {}
        for item in self.items:
            if item["seqno"] > seqno:
                break
            if item["kind"] == "system_event":
                found.clear()
            elif item["kind"] == "mutation":
                found[item["key"]] = item["cas"]
            else:
                found.pop(item["key"], None)
        return found


class ForkingLog:
    """Several vbuckets, their log, and the truth about each round."""

    def __init__(
        self, seed: int, vbuckets: int = 3, keys: int = 8, flush_chance: float = 0.05
    ) -> None:
        self.flush_chance = flush_chance
        self.random = random.Random(seed)
        self._of_audits = random.Random(seed)
        self.keys = [f"k{number}" for number in range(keys)]
        self.lake = WatchedLake(vbuckets)
        self.tables = self.lake.open()
        ensure_replicas(self.tables, [DOCS])
        self.vbuckets = [
            ForkingVbucket(
                number,
                LakeVbucketState.beginning(number),
                FailoverLog((FailoverEntry(self._uuid(), 0),)),
            )
            for number in range(vbuckets)
        ]
        self.truth: dict[tuple[int, int], Documents | None] = {}
        """(round, vbucket) -> what the vbucket held at its complete seqno; None: not whole then."""

    def _uuid(self) -> int:
        return self.random.randrange(1, 2**64)

    def commit_round(self, *, fork_chance: float = 0.35, index: bool = False) -> None:
        """Commit a round in which some vbuckets fork, some go on, and some rest.

        With ``index`` it lists the applies that no round has listed.
        """
        number = self.lake.round + 1
        rows: list[Row] = []
        restarts: list[Restart] = []
        for vb in self.vbuckets:
            if self.random.random() < fork_chance and vb.state.position.seqno:
                restarts.append(self._fork(vb))
            if self.random.random() < 0.7:
                rows += self._stream(vb, number)
            is_known = vb.state.is_whole or vb.state.epoch == 0
            documents = vb.documents(vb.state.complete_seqno)
            self.truth[number, vb.vbucket] = documents if is_known else None
        applied = unindexed_applied(self.tables, [DOCS]) if index else ()
        self.append(rows, [vb.state for vb in self.vbuckets], applied, restarts)

    def append(
        self,
        rows: list[Row],
        states: Collection[LakeVbucketState],
        applied: tuple[AppliedVersion, ...] = (),
        restarts: Iterable[Restart] = (),
    ) -> None:
        """Commit the next round."""
        number = self.lake.round + 1
        told = {"round": number, "kind": "status", "vbucket": 0, "detail": _SMALL}
        committed = pa.Table.from_batches(
            [
                pa.RecordBatch.from_pylist([*rows, told], schema=CHANGES),
                states_to_batch(states, number, restarts),
                applied_to_batch(applied, number),
            ]
        )
        append_round(self.tables, given_rows(self.tables, committed), number, "w", verify=False)

    def log_slice(self, to_round: int) -> LogSlice:
        """Return what an apply to a round would take."""
        status = replica_status(self.tables, DOCS)
        return SliceReader(self.tables, DOCS, status).slice_between(status.current, to_round)

    def apply(self, to_round: int | None = None) -> Version | None:
        """Bring the replica to a round, or the newest; None where nothing is to be done for it."""
        plan = plan_merge(self.tables, DOCS, to_round or self.lake.round)
        if plan is None:
            return None
        run_apply(self.tables, plan, "w")
        own = plan if self._of_audits.random() < 0.5 else None
        write_audit(self.tables, DOCS, replica_status(self.tables, DOCS), own)
        return self.lake.versions[-1]

    def _fork(self, vb: ForkingVbucket) -> Restart:
        """Begin an epoch at a live end; at 0 now and then."""
        seqno = self.random.choice([0, *vb.ends, *vb.ends, *vb.ends])
        vb.items = [item for item in vb.items if item["seqno"] <= seqno]
        vb.ends = [end for end in vb.ends if end <= seqno]
        kept = [entry for entry in vb.log.entries if entry.seqno <= seqno]
        vb.log = FailoverLog((FailoverEntry(self._uuid(), seqno), *kept))
        restart = Restart(vb.vbucket, RestartReason.ROLLBACK, seqno, vb.log.uuid_at(seqno))
        vb.state = vb.state.restarted(restart)
        vb.snapshot_end = 0
        return restart

    def _stream(self, vb: ForkingVbucket, number: int) -> list[Row]:
        rows: list[Row] = []
        begin = vb.state.position.seqno
        for _ in range(self.random.randint(1, 3)):  # snapshots
            seqno = vb.state.position.seqno
            if vb.snapshot_end <= seqno:
                vb.snapshot_end = seqno + self.random.randint(1, 6)
            for at in range(seqno + 1, vb.snapshot_end + 1):
                if self.random.random() < 0.25 and at < vb.snapshot_end:
                    continue  # replaced by a newer one in the same snapshot
                kind = self.random.choice(("mutation", "mutation", "deletion", "expiration"))
                if self.random.random() < self.flush_chance:
                    rows.append(self._flush(vb, number, at))
                    continue
                item = self._row(vb, number, kind) | {
                    "seqno": at,
                    "vb_uuid": vb.log.uuid_at(at),
                    "key": self.random.choice(self.keys),
                    "cas": self._uuid(),
                    "collection_id": 0,
                    "datatype": 1,
                }
                item["value"] = b'{"cas": %d}' % item["cas"] if kind == "mutation" else None
                rows.append(item)
                vb.items.append(item)
                vb.state = self._at(vb, number, at)
                if self.random.random() < 0.1 and at < vb.snapshot_end:
                    break  # the budget was used up
            if vb.state.position.seqno == vb.snapshot_end:
                vb.ends.append(vb.snapshot_end)
                rows.append(self._row(vb, number, "complete") | {"seqno": vb.snapshot_end})
            else:
                break
        assert vb.state.position.seqno > begin
        return rows

    def _flush(self, vb: ForkingVbucket, number: int, seqno: int) -> Row:
        """Let all documents be gone: the collection begins anew."""
        event = self._row(vb, number, "system_event") | {
            "seqno": seqno,
            "vb_uuid": vb.log.uuid_at(seqno),
            "collection_id": 0,
            "detail": '{"event": "BEGIN_COLLECTION", "collection_id": 0}',
        }
        vb.items.append(event)
        vb.state = replace(self._at(vb, number, seqno), last_collection_round=number)
        return event

    def _at(self, vb: ForkingVbucket, number: int, seqno: int) -> LakeVbucketState:
        position, uuid = vb.state.position, vb.log.uuid_at(seqno)
        complete = position.complete_seqno
        if seqno == vb.snapshot_end:
            reached = Position.complete_at(uuid, seqno)
        else:
            reached = Position(uuid, seqno, complete, vb.snapshot_end, complete)
        return vb.state.advanced(number, reached, brought_rows=True, failover_log=vb.log)

    def _row(self, vb: ForkingVbucket, number: int, kind: str) -> Row:
        return {
            "round": number,
            "epoch": vb.state.epoch,
            "vbucket": vb.vbucket,
            "kind": kind,
            "seqno": None,
            "key": None,
        }

    @staticmethod
    def documents_of(version: Version, vbucket: int) -> Documents:
        return {key: row["cas"] for (each, key), row in version.rows.items() if each == vbucket}

    def require_exact(self) -> None:
        """Compare every version of the replica, vbucket by vbucket, with the truth.

        What is not whole at a round may not be published: the version before keeps its rows.
        """
        before: dict[int, Documents] = {}
        for version in self.lake.versions[1:]:
            for vb in self.vbuckets:
                number = version.current.round_of(vb.vbucket)
                found = self.documents_of(version, vb.vbucket)
                expected = self.truth.get((number, vb.vbucket), {})
                if expected is None:
                    expected = before.get(vb.vbucket, {})
                assert found == expected, f"{version.current}: vbucket {vb.vbucket} differs"
                before[vb.vbucket] = found

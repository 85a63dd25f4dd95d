"""Checks docs/explain/architecture.md's promises after every commit, and when all is calm.

The producer records every branch that a vbucket ever had: it is asked what was there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from dcp.lake.change_log.control import RequestAction, RequestState, requests_of
from dcp.lake.change_log.erase_request import Erasure, key_hash
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.tables.schema import ITEM_KINDS
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.versions import Version as Document
from tests.lake.watched_lake import Row, Version, WatchedLake
from tests.simulation.checked import BAD
from tests.simulation.client_shell import SteppedReader
from tests.simulation.faults import Counts
from tests.simulation.source import Published
from tests.simulation.typed import Contracts

Documents = dict[bytes, tuple[int, int, bytes]]
"""Key -> seqno, cas, value."""


class Oracle:
    """Compares one lake with its source; each finding names the promise."""

    def __init__(self, tables: WatchedLake, cluster: ProducerCluster, counts: Counts) -> None:
        self._tables, self._cluster, self._counts = tables, cluster, counts
        self._held: set[tuple[int, int, int]] = set()
        """(vbucket, epoch, seqno) of every row that the log ever got."""
        self._starts: dict[int, tuple[int, int]] = {}
        """Where vbuckets started of which the lake has nothing of before: seqno and branch."""
        self.published: dict[int, Published] = {}
        self.largest_frame_bytes = 0
        self.persist_to = 0
        self.contracts: Contracts | None = None
        self.has_gate = False
        tables.on_round = self.check_round
        tables.on_version = self.check_version
        tables.on_answer = self.check_requests
        self._kept_out: frozenset[str] = frozenset()
        """Hashes of keys whose values were ever kept out."""
        self._erased: set[str] = set()
        """The erasures that are done."""

    # --- after each round

    def check_round(self, rows: Sequence[Row]) -> None:
        """P5, P7: nothing is received twice, and one round follows the other."""
        number = self._tables.round
        for row in rows:
            assert row["round"] == number, f"P7: found a row of round {row['round']} in {number}"
            if row["kind"] == "rollback":
                self._note_rollback(row)
            if row["kind"] not in ITEM_KINDS:
                continue
            place = (row["vbucket"], row["epoch"], int(row["seqno"]))
            assert place not in self._held, (
                f"P5: round {number} received seqno {place[2]} of vbucket {place[0]}, epoch "
                f"{place[1]}, a second time"
            )
            before = self._tables.states_at[number - 1].get(place[0])
            if before is not None and before.epoch == place[1]:
                assert place[2] > before.position.seqno, (
                    f"P5: round {number} received seqno {place[2]} of vbucket {place[0]}, which "
                    f"stood at {before.position.seqno}"
                )
            self._held.add(place)
        for vbucket, state in self._tables.states_at[number].items():
            self._note_start(state, self._tables.states_at[number - 1].get(vbucket))
        found = sorted(self._tables.states_at)
        assert found == list(range(number + 1)), f"P7: found rounds {found}"

    def _note_rollback(self, row: Row) -> None:
        if row["seqno"] is not None:
            anywhere = int(row["seqno"]) > 0
            self._counts.add("rollback followed" if anywhere else "rollback to 0 followed")

    def _note_start(self, state: LakeVbucketState, before: LakeVbucketState | None) -> None:
        """Know where a vbucket starts: for good, once its node accepted a stream."""
        is_new = before is None or before.failover_log is None
        if state.start_seqno and is_new:
            assert state.failover_log is not None, f"vbucket {state.vbucket}: starts nowhere"
            uuid = state.failover_log.uuid_at(state.start_seqno)
            self._starts[state.vbucket] = state.start_seqno, uuid
            self._counts.add("vbucket started where it was")

    # --- after each apply

    def check_version(self, version: Version) -> None:
        """P1, P2: each vbucket is what the source held at a complete seqno of a branch it had."""
        current = version.current
        commit, before = version.commit, self._tables.versions[-2:-1]
        if commit.is_apply and before:
            assert commit.ours["from_round"] == before[0].current.to_round, (
                f"P7: {commit} goes from round {commit.ours['from_round']}, expected "
                f"{before[0].current.to_round}, where the table stood"
            )
        if version.undone:
            self._counts.add("published rows taken back")
        if current.stale:
            self._counts.add("stale vbucket published")
        if self.has_gate:
            bad = [place for place, row in version.rows.items() if row["value"] == BAD]
            assert not bad, (
                f"quality.gate: {current} has the documents {bad}, which break the suite"
            )
        if self.contracts is not None:
            self.contracts.require_right(version)
            before_it = self._tables.versions[-2].made.columns if before else None
            self._note_columns(version, before_it)
        for vbucket in range(self._cluster.settings.vbuckets):
            found = _documents(version, vbucket)
            state = self._tables.states_at[current.round_of(vbucket)].get(vbucket)
            expected = {} if state is None else self.documents(state)
            expected = self._without_kept_out(expected, found)
            assert found == expected, (
                f"P1/P2: vbucket {vbucket} of {current} differs: at complete seqno "
                f"{state and state.complete_seqno} found {_brief(found)}, "
                f"expected {_brief(expected)}"
            )
            self._require_on_disk(vbucket, state)
            seqno = 0 if state is None else state.complete_seqno
            log = None if state is None else state.failover_log
            self.published[vbucket] = Published(seqno, 0 if log is None else log.uuid_at(seqno))

    def _note_columns(self, version: Version, before: pa.Schema | None) -> None:
        if version.commit.operation == "CREATE OR REPLACE TABLE AS SELECT":
            self._counts.add("table written anew")
        elif version.commit.is_apply and version.made.columns != before:
            self._counts.add("columns grew")

    def _require_on_disk(self, vbucket: int, state: LakeVbucketState | None) -> None:
        """``policy.persist_to``: what is published is on the disk of its branch's node."""
        if not self.persist_to or state is None or state.failover_log is None:
            return
        uuid = state.failover_log.uuid_at(state.complete_seqno)
        if self._cluster.failover_log(vbucket).current_uuid == uuid:
            persisted = self._cluster.persisted_seqno(vbucket)
            assert state.complete_seqno <= persisted, (
                f"persist_to: published vbucket {vbucket} up to seqno {state.complete_seqno}, the "
                f"disk has it up to {persisted}"
            )

    def documents(self, state: LakeVbucketState) -> Documents:
        """Return what the source held at a state's complete seqno, on the branch of its data."""
        seqno = state.complete_seqno
        if seqno == 0:
            return {}
        assert state.failover_log is not None, f"vbucket {state.vbucket}: rows without a branch"
        uuid = state.failover_log.uuid_at(seqno)
        return self._since_start(state, self._cluster.state_at(state.vbucket, seqno, uuid))

    def _since_start(self, state: LakeVbucketState, held: Mapping[bytes, Document]) -> Documents:
        """Return of a vbucket's documents those that were not there before it started.

        Those, too, that were there, above where a failover log says that the histories part: they
        may be others.
        """
        start_seqno, uuid = self._starts.get(state.vbucket, (0, 0))

        def was_there(key: bytes, document: Document) -> bool:
            if document.seqno > state.started_below(start_seqno):
                return False
            then = self._cluster.state_at(state.vbucket, document.seqno, uuid).get(key)
            return then is not None and then.cas == document.cas

        return {
            key: (each.seqno, each.cas, each.value)
            for key, each in held.items()
            if not was_there(key, each)
        }

    # --- after each answer to a request

    def check_requests(self) -> None:
        """After an erasure no readable version and no row of the log has what it took."""
        rows = self._tables.store.kept[CONTROL_TABLE].newest.rows.to_pylist()
        for request in requests_of(rows):
            if request.action != RequestAction.ERASE or request.state not in (
                RequestState.BEGUN,
                RequestState.DONE,
            ):
                continue
            erasure = Erasure.of(request.options)
            if erasure.keeps_out:
                self._kept_out |= erasure.key_hashes
            if request.state is RequestState.DONE and request.id not in self._erased:
                self._erased.add(request.id)
                ended = (row["round"] for row in rows if row["id"] == request.id and row["round"])
                self._require_erased(erasure, max(ended))

    def _require_erased(self, erasure: Erasure, round_number: int) -> None:
        """``round_number``: the round of the erasure. Later ones may bring documents again."""
        changes = self._tables.changes.kept
        log = changes.newest.rows.to_pylist()
        later = {
            (row["vbucket"], row["epoch"], row["seqno"])
            for row in log
            if row["round"] > round_number
        }
        for number in range(len(changes.versions)):
            if number not in changes.unreadable:
                rows = changes.versions[number].rows.to_pylist()
                found = _values(rows, erasure, later)
                assert not found, f"erase: version {number} of changes has {found}"
        for version in self._tables.versions:
            if version.made.number not in self._tables.unreadable:
                found = _values(version.made.rows.to_pylist(), erasure, later)
                assert not found, f"erase: {version.current} has {found}"
        self._counts.add("values kept out" if erasure.keeps_out else "documents erased")

    def _without_kept_out(self, documents: Documents, found: Documents) -> Documents:
        """Return what is expected: a kept out document may have lost its value, as in ``found``."""
        return {
            key: (seqno, cas, b"")
            if key in found and not found[key][2] and key_hash(key.decode()) in self._kept_out
            else (seqno, cas, value)
            for key, (seqno, cas, value) in documents.items()
        }

    # --- while bytes arrive

    def check_reader(self, reader: SteppedReader) -> None:
        """P4: what a node sent and we did not acknowledge fits the window, and one message."""
        window = reader.protocol.flow.connection
        if 0 < window.size_bytes < window.unacked_bytes:
            excess = window.unacked_bytes - window.size_bytes
            self._counts.add("window full")
            assert excess <= self.largest_frame_bytes, (
                f"P4: found {window.unacked_bytes} bytes outstanding, expected at most the window "
                f"of {window.size_bytes} and one message of {self.largest_frame_bytes}"
            )

    # --- when all is calm

    def _published(self, vbucket: int) -> Documents:
        return _documents(self._tables.versions[-1], vbucket)

    def lacks(self) -> str:
        """P6, P3: say what is not as the source has it now; empty where all is."""
        tables = self._tables
        if tables.versions[-1].current.stale:
            return f"stale: {tables.versions[-1].current}"
        for vbucket in range(self._cluster.settings.vbuckets):
            state, high = tables.states.get(vbucket), self._cluster.high_seqno(vbucket)
            if state is None or high == 0:
                if high:
                    return f"vbucket {vbucket}: never read, the source is at {high}"
                if state is not None and state.complete_seqno:
                    return f"vbucket {vbucket}: at {state.complete_seqno}, the source is empty"
                continue
            if state.complete_seqno != high:
                return (
                    f"vbucket {vbucket}: complete up to {state.complete_seqno} of {high}: {state}"
                )
            expected = self._since_start(state, self._cluster.state_at(vbucket, high))
            if self.documents(state) != expected:
                return f"vbucket {vbucket}: on a dead branch at {high}"
            # A flush of what was never published leaves nothing to publish.
            published, _ = self.published.get(vbucket, Published(0, 0))
            found = self._published(vbucket)
            if published != high and found != self._without_kept_out(expected, found):
                return f"vbucket {vbucket}: {high} is read, {published} published"
        return "" if self.contracts is None else self.contracts.lacks(tables.versions[-1])


def _documents(version: Version, vbucket: int) -> Documents:
    """Return what a version of the table has of a vbucket."""
    return {
        row["key"].encode(): (int(row["seqno"]), int(row["cas"]), row["value"])
        for (place, _), row in version.rows.items()
        if place == vbucket
    }


def _values(
    rows: Iterable[Row], erasure: Erasure, later: Collection[tuple[int, int, int]]
) -> list[Row]:
    """Return the rows that an erasure should have taken; ``later`` are places of newer rows."""
    return [
        row
        for row in rows
        if row["key"] is not None
        and key_hash(row["key"]) in erasure.key_hashes
        and row.get("collection_id", 0) == 0
        and (row["value"] or not erasure.keeps_out)
        and (row["vbucket"], row["epoch"], row["seqno"]) not in later
    ]


def _brief(documents: Documents) -> str:
    return "{" + ", ".join(f"{k.decode()}@{v[0]}" for k, v in sorted(documents.items())) + "}"

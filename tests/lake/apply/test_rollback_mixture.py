"""P2 where one apply meets every kind of rollback at once.

Each vbucket has a node of its own, so that each can lose what it shall. One is not rolled back, one
goes back a little, one twice, one beyond the versions whose files are there, one to zero because
deletions that nobody read were purged, and one is emptied. What cannot be taken back stays as it
was, told as stale, until its new history is whole; more rollbacks come meanwhile.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import Settings
from dcp.lake.maintain.steps import run_steps, work_on
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import LeftOut, RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.store.log_slice import EMPTY_TABLE, REPLACED
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import DOCS, cleaned_round
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.log_model import apply_pending
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import settings_for, store_without_spark
from tests.lake.replicas import (
    Rows,
    require_no_row_twice,
    rows_at,
    source_rows,
    table_rows,
)
from tests.seeds import seeds

pytestmark = pytest.mark.timeout(900)

UNTOUCHED, A_LITTLE, TWICE, BEYOND, TO_ZERO, EMPTIED = range(6)
VBUCKETS: Final = 6
LARGE: Final = 1500
"""Documents of the vbucket that goes to zero: more than a small round brings."""
SMALL_ROUND_BYTES: Final = 60_000
SMALL_FLOW: Final = {"window_bytes": 32_768, "batch_bytes": 8_192}
"""A node sends no more than this beyond what a round takes."""


class Mixture:
    """The bucket and its lake: rounds and applies are made one by one."""

    def __init__(self, cluster: ProducerCluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self._keys: dict[int, list[bytes]] = {vb: [] for vb in range(VBUCKETS)}
        number = 0
        while any(len(keys) < 8 for keys in self._keys.values()):
            key = b"key-%d" % number
            self._keys[cluster.vbucket_of(key)].append(key)
            number += 1
        settings = settings_for(
            cluster,
            folder,
            round={"quiet_seconds": 0.2},
            apply={"when": "never"},
            flow_control=SMALL_FLOW,
        )
        self._access = source_access(settings)
        probed = query_cluster(self._access)
        self.lake = open_or_create(store_without_spark(settings), settings, probed)
        self._driver = self._driver_of(settings)
        small = replace(settings.round, target_bytes=SMALL_ROUND_BYTES)
        self._small_driver = self._driver_of(replace(settings, round=small))
        self._small_driver.writer_id = self._driver.writer_id  # they are one, to the fence

    def _driver_of(self, settings: Settings) -> Driver:
        return Driver(self.lake, settings, self._access, Observer())

    def write(self, *vbuckets: int, times: int = 4) -> None:
        """Write and delete, each in a snapshot of its own: a fork may lie anywhere."""
        for vbucket in vbuckets or range(VBUCKETS):
            for key in self.random.sample(self._keys[vbucket], times):
                self.cluster.set(key, b'{"n": %d}' % self.random.randrange(10**6))
            self.cluster.delete(key)

    def fill(self, vbucket: int) -> None:
        """Write large documents into a vbucket: one snapshot, and more than one round."""
        number = found = 0
        with self.cluster.batch():
            while found < LARGE:
                key = b"large-%d" % number
                if self.cluster.vbucket_of(key) == vbucket:
                    self.cluster.set(key, self.random.randbytes(1000))
                    found += 1
                number += 1

    def lose(self, vbucket: int, seqnos: int) -> None:
        self.cluster.crash_restart(self.cluster.vbucket_owner(vbucket), lost_seqnos=seqnos)

    def purge_unread_deletions(self, vbucket: int) -> None:
        """Delete what the lake shows, and forget it: only reading all again can tell of it.

        What follows is large: that takes more than one small round.
        """
        key = next(key for key in self._keys[vbucket] if key in self.shown().get(vbucket, {}))
        self.cluster.delete(key)
        self.fill(vbucket)
        assert self.cluster.purge_tombstones(vbucket) > 0

    def round(self, *, small: bool = False, but_for: int | None = None) -> bool:
        """Make one round, without the vbucket ``but_for``; return whether there was one to make."""
        driver = self._small_driver if small else self._driver
        skip = {} if but_for is None else {but_for: LeftOut(but_for, "held back", "by the test")}
        plan = driver.prepare_round(query_cluster(self._access), skip=skip)
        if isinstance(plan, RoundPlan):
            driver.round(plan)
        return isinstance(plan, RoundPlan)

    def receive(self) -> None:
        """Make rounds until there is nothing to do."""
        while self.round():
            pass

    def apply(self) -> AppliedVersion:
        made = self.apply_if_due()
        assert made is not None, "found nothing to apply"
        return made

    def apply_if_due(self) -> AppliedVersion | None:
        made = apply_pending(self.lake, [DOCS], latest_round(self.lake), "w")
        return made[0] if made else None

    def shown(self) -> Rows:
        return table_rows(self.lake, None)

    def publish_four_versions(self, *, is_cleaned: bool) -> int:
        """Apply four times; no file is left of the first two versions. Return the third one."""
        self._publish()
        self._publish()
        if is_cleaned:
            self._clean()
        self._vacuum()
        base = self._publish().version
        self._publish()
        return base

    def _publish(self) -> AppliedVersion:
        self.write()
        self.receive()
        return self.apply()

    def _vacuum(self) -> None:
        """Take the files of all versions but the newest."""
        assert isinstance(self.lake.store, MemoryStore)
        kept = self.lake.store.table("docs").kept
        kept.unreadable |= set(range(kept.newest.number))

    def _clean(self) -> None:
        """Let the horizon begin now: what older versions hold leaves the log."""
        later = datetime.now(UTC) + timedelta(seconds=600)
        [cleaned] = run_steps(work_on(self.lake, Horizon(600), now=later), ["clean"])
        assert cleaned.done and cleaned_round(self.lake, DOCS) > 0

    def require_exact(self, made: AppliedVersion, before: Rows) -> None:
        """What an apply left is exact: of what is stale the rows of before, of the rest its own."""
        stale = made.stale
        states = states_at(self.lake, made.to_round).values()
        expected = rows_at(self.cluster, [each for each in states if each.vbucket not in stale])
        assert self.shown() == expected | {vb: before[vb] for vb in stale if vb in before}

    def require_as_the_bucket(self) -> None:
        high = {vb: self.cluster.high_seqno(vb) for vb in range(VBUCKETS)}
        assert self.shown() == source_rows(self.cluster, high)


@pytest.fixture
def mixture(lakes_in_memory: None, tmp_path: Path) -> Iterator[Mixture]:
    [seed] = seeds(1, first=9000)
    settings = ClusterSettings(nodes=VBUCKETS, vbuckets=VBUCKETS, seed=seed)
    with ProducerCluster(settings) as cluster:
        yield Mixture(cluster, tmp_path, seed)


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_every_kind_of_rollback_in_one_apply(mixture: Mixture, is_cleaned: bool) -> None:
    cluster = mixture.cluster
    base = mixture.publish_four_versions(is_cleaned=is_cleaned)
    before = mixture.shown()

    mixture.lose(A_LITTLE, 2)
    mixture.lose(TWICE, 2)
    mixture.lose(BEYOND, 12)
    mixture.lose(EMPTIED, cluster.high_seqno(EMPTIED))
    mixture.write(A_LITTLE, TWICE, UNTOUCHED)
    assert mixture.round()  # the orders
    mixture.write(TWICE)
    assert mixture.round(small=True)  # the new epochs begin
    mixture.lose(TWICE, 8)
    mixture.purge_unread_deletions(TO_ZERO)
    assert mixture.round(small=True)  # its order, and the second one of TWICE
    assert mixture.round(small=True)  # the first part of what it reads again
    while not is_at_the_end_but_for(mixture, TO_ZERO):
        # A second part would be refused: the purge lies beyond the first one.
        assert mixture.round(small=True, but_for=TO_ZERO)
    made = mixture.apply()
    undone = {undo.vbucket: undo.version for undo in made.undone}
    stale = set(made.stale)
    assert undone[A_LITTLE] == undone[TWICE] == base
    assert UNTOUCHED not in undone.keys() | made.stale.keys()
    assert TO_ZERO in stale and mixture.shown()[TO_ZERO] == before[TO_ZERO]
    if is_cleaned:
        assert BEYOND in stale and mixture.shown()[BEYOND] == before[BEYOND]
    else:
        assert undone[BEYOND] == EMPTY_TABLE
        assert undone[EMPTIED] == REPLACED and EMPTIED not in mixture.shown()
    mixture.require_exact(made, before)
    if is_cleaned:
        return  # the rest goes the same way with and without

    # While some wait, others go back again, and those that wait lose what they have read so far.
    read = states_at(mixture.lake, latest_round(mixture.lake))[TO_ZERO].position.seqno
    unread = cluster.high_seqno(TO_ZERO) - read
    mixture.lose(TO_ZERO, unread + 3)  # inside its first snapshot, so all that was read of it
    mixture.lose(A_LITTLE, 3)
    mixture.write(A_LITTLE, BEYOND, TO_ZERO)
    mixture.fill(TO_ZERO)  # so that it is not whole when others are published
    times_stale = 0
    while mixture.round(small=True):
        made = mixture.apply_if_due() or made
        times_stale += TO_ZERO in made.stale
        mixture.require_exact(made, before)
    assert times_stale >= 1
    mixture.receive()
    mixture.apply_if_due()
    mixture.receive()  # what the apply found that it cannot take back
    mixture.apply_if_due()
    mixture.require_as_the_bucket()
    require_no_row_twice(mixture.lake)


def is_at_the_end_but_for(mixture: Mixture, waiting: int) -> bool:
    """Whether every other vbucket is at the newest seqno of its branch, without an order."""
    states = states_at(mixture.lake, latest_round(mixture.lake))
    is_waiting = states[waiting].order is not None or not states[waiting].is_whole
    assert is_waiting, "it is whole already: make it larger, or rounds smaller"
    return all(
        state.order is None and state.complete_seqno == mixture.cluster.high_seqno(vbucket)
        for vbucket, state in states.items()
        if vbucket != waiting
    )

"""A relay whose disk takes nothing: the cluster waits, consumers go on, and nothing is lost.

The disk is full for the process as a disk is: no file of it may grow any more, so that a write ends
in its middle. Where each write is to fail by chance it fails in this process.
"""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from time import sleep

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.records import read
from dcp.relay.thread import Relay
from dcp.relay_figures import RelayFigures
from dcp.server.storage.disk_file import Data, OsFile
from tests.client.drained import USERS, all_of, fill, wait_for
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.relay.following import wait_until_level
from tests.relay.lakes import PATIENCE_SECONDS, Lake
from tests.relay.relaying import Relaying, relaying

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
QUOTA_BYTES = 2 * 1024 * 1024
WINDOW_BYTES = 64 * 1024
DOCUMENT_BYTES = 4_000
COUNT = 500
"""Documents that are more than the quota's quarter, and than all windows besides."""
PARTS = 50
FULL_BYTES = 40_000
OPTIONS = ("--memory-quota", str(QUOTA_BYTES), "--window-bytes", str(WINDOW_BYTES))


def _let_files_grow(relay: Relaying, most_bytes: int) -> None:
    hard = resource.prlimit(relay.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(relay.process.pid, resource.RLIMIT_FSIZE, (most_bytes, hard))


def _write_much(cluster: ProducerCluster, prefix: str = "much", count: int = COUNT) -> None:
    random = Random(3)
    with cluster.batch():
        for number in range(count):
            cluster.set(f"{prefix}-{number}".encode(), random.randbytes(DOCUMENT_BYTES))


def _told(relay: Relaying) -> RelayFigures:
    ((user, password),) = USERS.items()
    with RawClient(relay.seed, PATIENCE_SECONDS) as client:
        told = client.log_in(PLAIN_FEATURES, user, password).statistics("relay")
    return read(RelayFigures, json.loads(told["relay"]))


def _outstanding(cluster: ProducerCluster) -> int:
    with cluster.bucket.lock:
        flows = cluster.bucket.counters.flows.values()
        return max((flow.outstanding_bytes for flow in flows), default=0)


def _wait_until_stopped(cluster: ProducerCluster, relay: Relaying) -> int:
    """Wait until the cluster sends nothing more; return how much it sent."""
    sent = -1

    def is_stopped() -> bool:
        """Whether nothing came in half a second: what was acknowledged before is over then."""
        nonlocal sent
        before, sent = sent, sum(cluster.counters().items_sent.values())
        if sent == before and _told(relay).waits_for_disk and _outstanding(cluster) >= WINDOW_BYTES:
            return True
        sleep(0.5)
        return False

    wait_for("the cluster waits", is_stopped, PATIENCE_SECONDS)
    return sent


@pytest.mark.parametrize(("fc", "is_killed"), [("max", True), ("min,t:60s", False)])
def test_a_full_disk(
    make_cluster: MakeCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    fc: str,
    is_killed: bool,
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    options = (*OPTIONS, "--fc", fc)
    with relaying(cluster, tmp_path, *options) as relay, closing(Lake(relay.seed, 2)) as lake:
        lake.run_to(cluster)
        _let_files_grow(relay, FULL_BYTES)
        _write_much(cluster)
        lake.run(lambda _: _told(relay).waits_for_disk)
        sent = _wait_until_stopped(cluster, relay)
        assert sent < 20 + COUNT
        on_disk = 20 + FULL_BYTES * 2 // DOCUMENT_BYTES  # more than the disk ever got
        lake.run(lambda _: sum(len(rows) for rows in lake.rows.values()) > on_disk)
        told = _told(relay)
        assert told.disk_waiting_bytes >= QUOTA_BYTES // 4
        assert "cannot write: [Errno 27] File too large" in told.disk_trouble
        assert "vb_" in told.disk_trouble
        if is_killed:
            relay.kill()
            lake.close()
            with relaying(cluster, tmp_path, *options) as relay:  # noqa: PLW2901
                lake.connect(relay.seed)
                lake.run_to(cluster)
        else:
            _let_files_grow(relay, resource.RLIM_INFINITY)
            lake.run_to(cluster)
            wait_for("all is on disk", lambda: _is_well(relay), PATIENCE_SECONDS)
        assert lake.rollbacks == {}
    said = capfd.readouterr().err
    assert "the relay's disk is unavailable; acknowledgements to the cluster are paused" in said
    assert is_killed or "acknowledgements to the cluster continue" in said
    with relaying(cluster, tmp_path) as relay, closing(Lake(relay.seed, 2, "new")) as lake:
        lake.run_to(cluster)


def _is_well(relay: Relaying) -> bool:
    told = _told(relay)
    return not (told.disk_waiting_bytes or told.waits_for_disk or told.disk_trouble)


class BadDisk:
    """A disk of which each write may fail, before it began or in its middle; if full, all do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int) -> None:
        self.failures, self.is_bad, self.is_full = 0, True, False
        self._random, self._folder = Random(seed), str(folder)
        for name in ("append", "replace"):
            self._spoil(monkeypatch, name)

    def _spoil(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        write = getattr(OsFile, name)

        def maybe(file: OsFile, *place: int, parts: Iterable[Data]) -> None:
            is_ours = str(file).startswith(self._folder)
            takes_it = not self.is_full and self._random.random() < 0.5
            if not (self.is_bad and is_ours) or takes_it:
                write(file, *place, parts)
                return
            self.failures += 1
            if name == "append" and self._random.random() < 0.7:
                data = b"".join(bytes(part) for part in parts)
                write(file, *place, [data[: self._random.randrange(len(data) + 1)]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

        def called(file: OsFile, *given: object) -> None:
            *place, parts = given
            maybe(file, *place, parts=parts)  # type: ignore[arg-type]

        monkeypatch.setattr(OsFile, name, called)


@pytest.mark.parametrize("seed", range(3))
def test_any_write_may_fail(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Rollbacks too find a disk that refuses; what is read afterwards is what the cluster has."""
    cluster = make_cluster(nodes=2, vbuckets=4, clock=lambda: 1_700_000_000.0)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=30_000)
    folder = relay.relay_settings.data_folder
    random = Random(seed)
    with closing(Lake(relay.seeds[0], 4)) as lake:
        fill(cluster, 40)
        lake.run_to(cluster)
        disk = BadDisk(monkeypatch, folder, seed)
        for turn in range(8):
            fill(cluster, 60, 300, f"turn{turn}")
            for _ in range(5):
                lake.take_one(0.05)
            if turn in (2, 5):
                cluster.crash_restart(random.randrange(2), lost_seqnos=random.randrange(1, 5))
        lake.run_to(cluster)
        wait_for("some failed", lambda: disk.failures > 3, PATIENCE_SECONDS)
        disk.is_bad = False
        fill(cluster, 60, 300, "last")
        lake.run_to(cluster)
        wait_until_level(cluster, relay)
    relay.stop()
    again = make_relay(cluster, data_folder=folder)
    with closing(Lake(again.seeds[0], 4, "new")) as lake:
        lake.run_to(cluster)


def test_a_failing_disk_shows_before_the_cluster_waits_for_it(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(vbuckets=2)
    relay = make_relay(cluster)
    disk = BadDisk(monkeypatch, tmp_path, 1)
    disk.is_full = True
    fill(cluster, 20)
    wait_for("it shows", lambda: relay.figures().disk_failures == 2, PATIENCE_SECONDS)
    assert not relay.figures().waits_for_disk
    disk.is_bad = False
    wait_for("it is over", lambda: not relay.figures().disk_failures, PATIENCE_SECONDS)


def _end_streams(cluster: ProducerCluster) -> None:
    with cluster.bucket.lock:
        for vbucket in all_of(cluster):
            cluster.bucket.dcp_connections.end_streams(vbucket, 0)


@pytest.mark.parametrize("end", [_end_streams, ProducerCluster.drop_connections])
def test_what_streams_brought_that_are_over_is_unreleased_until_it_is_on_disk(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[ProducerCluster], None],
) -> None:
    """Else each end would let one window more come, and memory would have no bound."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 20)
    relay = make_relay(cluster, window_bytes=WINDOW_BYTES, checkpoint_quota_bytes=QUOTA_BYTES)
    wait_until_level(cluster, relay)
    disk = BadDisk(monkeypatch, tmp_path, 1)
    disk.is_full = True
    for part in range(PARTS):
        _write_much(cluster, f"part{part}", COUNT // PARTS)
        sleep(0.15)
        end(cluster)
    wait_for("it waits", lambda: relay.figures().waits_for_disk, PATIENCE_SECONDS)
    for _ in range(5):
        end(cluster)
        sleep(0.3)
    found = relay.figures()
    assert found.waits_for_disk
    assert 0 <= found.disk_waiting_bytes - QUOTA_BYTES // 4 <= 2 * WINDOW_BYTES
    disk.is_bad = False
    wait_until_level(cluster, relay)
    with closing(Lake(relay.seeds[0], 2)) as lake:
        lake.run_to(cluster)

    def is_free() -> bool:
        return not relay.figures().upstream[0].unreleased_bytes

    wait_for("all is released", is_free, PATIENCE_SECONDS)
    assert not relay.figures().waits_for_disk

"""A cluster of several processes, joined over real sockets: each is a thread of its own here."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    LocalProtocolError,
    RemoteProtocolError,
    SourceError,
)
from dcp.producer.admin_client import AdminClient
from dcp.producer.bucket_type import BucketType
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_state import ClusterState, Invitation
from dcp.producer.documents import DocumentError
from dcp.producer.joined_cluster import JoinedCluster
from dcp.producer.kv_client import KvClient
from dcp.producer.settings import ClusterSettings, TlsFiles
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status, VbucketState
from tests.producer.compared_copies import frames_of
from tests.producer.durable_requests import FEATURES as DURABLE_FEATURES
from tests.producer.durable_requests import durability
from tests.producer.processes import WAIT_SECONDS, Processes
from tests.producer.raw_client import RawClient
from tests.producer.tls import CERTIFICATE, KEY

MakeProcesses = Callable[..., Processes]
KEYS = [b"k%d" % number for number in range(60)]


@pytest.fixture
def make_processes() -> Iterator[MakeProcesses]:
    with ExitStack() as stack:

        def make(**chosen: Any) -> Processes:
            settings = {"vbuckets": 4, "nodes": 1, "replicas": 1, "seed": 1, **chosen}
            first = stack.enter_context(ProducerCluster(ClusterSettings(**settings)))
            return Processes(first, stack.enter_context(_joining(first)))

        yield make


def _joining(first: ProducerCluster, **chosen: Any) -> JoinedCluster:
    given = first.settings
    settings: dict[str, Any] = {
        "seed": 2,
        "member_timeout_seconds": given.member_timeout_seconds,
        "last_words_seconds": given.last_words_seconds,
    }
    return JoinedCluster(ClusterSettings(**{**settings, **chosen}), first.seeds[0])


@pytest.fixture
def pair(make_processes: MakeProcesses) -> Processes:
    """Four vbuckets in the first process, of which there shall be one copy each."""
    return make_processes()


@pytest.fixture
def even(pair: Processes) -> Processes:
    """Two vbuckets in each, with documents, and copied to the other."""
    for key in KEYS:
        pair.set(key)
    pair.first.rebalance()
    pair.assert_copies_are_equal()
    return pair


def _held(seed: str, keys: list[bytes] = KEYS) -> set[bytes]:
    with KvClient([seed], "Administrator", "password", "default") as client:
        return set(client.get(keys))


def test_a_process_joins_and_takes_its_share(pair: Processes) -> None:
    """Vbuckets move as they are, copies come; whichever process is asked knows where all are."""
    for key in KEYS:
        pair.set(key)
    before = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
    assert pair.owners() == [0, 0, 0, 0]
    assert pair.first.seeds == pair.second.seeds
    pair.first.rebalance()
    assert sorted(pair.owners()) == [0, 0, 1, 1]
    pair.settle()
    after = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
    assert after == before
    pair.assert_copies_are_equal()
    for seed in pair.first.seeds:
        assert _held(seed) == set(KEYS)


def test_vbuckets_move_between_processes_without_copies(make_processes: MakeProcesses) -> None:
    pair = make_processes(replicas=0)
    for key in KEYS:
        pair.set(key)
    before = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
    for remove, owned in ((None, 2), (0, 4), (None, 2), (1, 0)):
        pair.first.rebalance(remove)
        pair.settle()
        if remove is not None:
            pair.first.restore_node(remove)
        assert pair.owners().count(1) == owned
        after = [(pair.active(v).failover_log, frames_of(pair.active(v))) for v in range(4)]
        assert after == before
        assert [pair.active(v).state for v in range(4)] == [VbucketState.ACTIVE] * 4
    assert _held(pair.first.seeds[0]) == set(KEYS)


def test_an_ephemeral_bucket_is_one_in_every_process(make_processes: MakeProcesses) -> None:
    pair = make_processes(bucket_type=BucketType.EPHEMERAL)
    for key in KEYS:
        pair.set(key)
    pair.first.rebalance()
    pair.assert_copies_are_equal()
    assert pair.second.settings.bucket_type is BucketType.EPHEMERAL
    assert all(pair.active(v).is_ephemeral for v in range(4))


def test_encrypted_ports_of_other_processes_are_in_the_map() -> None:
    tls = TlsFiles(CERTIFICATE, KEY)
    with (
        ProducerCluster(ClusterSettings(vbuckets=2, tls=tls)) as first,
        _joining(first, tls=tls) as second,
    ):
        first.members.wait_until_told()
        assert len(set(second.tls_seeds + second.seeds + second.https_seeds)) == 6
        assert second.tls_seeds == first.tls_seeds


def test_writes_in_either_process_are_copied_to_the_other(even: Processes) -> None:
    even.first.create_scope("s")
    even.first.create_collection("s", "a")
    even.settle()
    for number, key in enumerate(KEYS):
        even.set(key, b"%d" % number)
        even.set(key, b"again", collection="s.a")
    for key in KEYS[::3]:
        even.home_of(even.owners()[even.first.vbucket_of(key)]).delete(key)
    even.first.flush_collection("s", "a")
    even.assert_copies_are_equal()
    assert even.second.manifest == even.first.manifest
    assert all(even.active(v).data.high_seqno for v in range(4))


def _durable(seed: str, vbucket: int, level: int) -> int:
    """Write to a vbucket with a durability level; return the answer's status."""
    key = next(key for key in KEYS if vbucket_of(key, 4) == vbucket)
    with RawClient(seed) as client:
        client.log_in(DURABLE_FEATURES)
        body, infos = m.Store(key, b"durable"), durability(level)
        return client.call(body, Opcode.SET, vbucket=vbucket, framing_extras=infos).status


@pytest.mark.parametrize("level", [1, 2, 3])
def test_durable_writes_count_on_copies_in_another_process(even: Processes, level: int) -> None:
    for vbucket, owner in enumerate(even.owners()):
        assert _durable(even.first.seeds[owner], vbucket, level) == Status.SUCCESS
    even.assert_copies_are_equal()


def test_without_the_other_process_no_write_is_durable(make_processes: MakeProcesses) -> None:
    """Its node is dead, and then failed over: too few copies are left."""
    pair = make_processes()
    pair.first.rebalance()
    assert _durable(pair.first.seeds[0], 0, 1) == Status.SUCCESS
    pair.second.stop()
    pair.wait_until_dead(1)
    pair.first.failover(1)
    assert _durable(pair.first.seeds[0], 0, 1) == Status.DURABILITY_IMPOSSIBLE


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_second_process_is_failed_over(even: Processes, is_gone: bool) -> None:
    """The first goes on from its copies, each on a new branch; the second has nothing left."""
    moved = [v for v, owner in enumerate(even.owners()) if owner == 1]
    before = {v: (even.active(v).failover_log, frames_of(even.active(v))) for v in moved}
    if is_gone:
        even.second.stop()
        even.wait_until_dead(1)
    even.first.failover(1)
    assert even.owners() == [0, 0, 0, 0]
    for vbucket, (log, frames) in before.items():
        newest, *older = even.active(vbucket).failover_log.entries
        assert tuple(older) == log.entries
        assert newest.seqno == even.active(vbucket).data.high_seqno
        assert frames_of(even.active(vbucket)) == frames
    even.settle()
    assert even.second.bucket.held.of_node(1) == [] or is_gone
    assert _held(even.first.seeds[0]) == set(KEYS)
    if not is_gone:
        with pytest.raises(DocumentError):
            even.second.set(KEYS[0], b"lost")
        even.first.restore_node(1)
        even.assert_copies_are_equal()


def test_nodes_of_the_first_process_are_failed_over(even: Processes) -> None:
    """The copies of the second are promoted there, and it serves all there is."""
    logs = [even.active(v).failover_log for v in range(4)]
    moved = [v for v, owner in enumerate(even.owners()) if owner == 0]
    even.first.failover(0)
    even.settle()
    assert even.owners() == [1, 1, 1, 1]
    for vbucket in range(4):
        log = even.active(vbucket).failover_log
        assert (log.entries[1:] == logs[vbucket].entries) is (vbucket in moved)
        assert even.active(vbucket).state is VbucketState.ACTIVE
    assert _held(even.second.seeds[1]) == set(KEYS)
    even.second.set(KEYS[0], b"2")
    even.first.restore_node(0)
    even.assert_copies_are_equal()


def test_what_a_copy_had_not_is_lost_wherever_it_is(even: Processes) -> None:
    vbucket = even.owners().index(0)
    key = next(key for key in KEYS if even.first.vbucket_of(key) == vbucket)
    even.first.pause_replication()
    even.settle()
    even.set(key, b"lost")
    even.first.failover(0)
    even.settle()
    assert even.second.get(key).value == b"1"


def test_a_process_gives_all_away_and_comes_again(even: Processes) -> None:
    """It is another one then, at the same address, and has the number that it had."""
    even.first.rebalance(remove=1)
    assert even.owners() == [0, 0, 0, 0]
    even.settle()
    assert even.second.bucket.held.of_node(1) == []
    ports = (int(even.second.seeds[1].rpartition(":")[2]),)
    even.second.stop()
    with _joining(even.first, ports=ports) as again:
        both = Processes(even.first, again)
        assert again.number == 1
        both.first.rebalance()
        both.assert_copies_are_equal()
        assert sorted(both.owners()) == [0, 0, 1, 1]
        assert _held(again.seeds[1]) == set(KEYS)


def test_three_processes(make_processes: MakeProcesses) -> None:
    """Vbuckets also move between two that joined."""
    pair = make_processes(vbuckets=6, replicas=2)
    for key in KEYS:
        pair.set(key)
    pair.first.rebalance()
    with _joining(pair.first) as third:
        assert third.number == 2
        trio = Trio(pair.first, pair.second, third)
        trio.first.rebalance()
        assert [trio.owners().count(node) for node in range(3)] == [2, 2, 2]
        trio.assert_copies_are_equal()
        trio.first.rebalance(remove=1)
        assert [trio.owners().count(node) for node in range(3)] == [3, 0, 3]
        trio.first.failover(2)
        trio.settle()
        assert _held(trio.first.seeds[0]) == set(KEYS)


class Trio(Processes):
    """Two processes that joined."""

    def __init__(self, first: ProducerCluster, *joined: JoinedCluster) -> None:
        super().__init__(first, joined[0])
        self.joined = joined

    @property
    def all(self) -> list[ProducerCluster]:
        return [self.first, *self.joined]


def test_what_was_killed_must_be_failed_over_before_it_joins(even: Processes) -> None:
    """It comes with nothing, and the map says that it has vbuckets."""
    port = int(even.second.seeds[1].rpartition(":")[2])
    even.second.stop()
    with pytest.raises(SourceError, match="still owns 2 vbuckets, which were lost"):
        _joining(even.first, ports=(port,)).start()
    even.wait_until_dead(1)
    with pytest.raises(ValueError, match="does not answer; restore it, or fail it over first"):
        even.first.rebalance()
    with pytest.raises(ValueError, match="which does not answer; begin one that joins"):
        even.first.restore_node(1)
    even.first.failover(1)
    with _joining(even.first, ports=(port,)) as again:
        Processes(even.first, again).assert_copies_are_equal()


def test_without_the_first_process_the_second_serves_what_it_has(even: Processes) -> None:
    moved = [v for v, owner in enumerate(even.owners()) if owner == 1]
    keys = [key for key in KEYS if even.first.vbucket_of(key) in moved]
    even.first.stop()
    for key in keys:
        even.second.set(key, b"alone")
        assert even.second.get(key).value == b"alone"


def test_the_first_process_stops_and_starts_again(even: Processes) -> None:
    even.first.stop()
    for key in KEYS:
        if even.owners()[even.first.vbucket_of(key)] == 1:
            even.second.set(key, b"meanwhile")
    even.first.start()
    even.wait_until_alive(1)
    even.assert_copies_are_equal()


# --- processes that hang, or are lost on the way


def test_a_process_that_hangs_is_dead_until_it_answers(make_processes: MakeProcesses) -> None:
    pair = make_processes(member_timeout_seconds=2.0)
    pair.first.rebalance()
    pair.second.hang_node(1)
    pair.wait_until_dead(1)
    for key in KEYS:
        if pair.owners()[pair.first.vbucket_of(key)] == 0:
            pair.set(key)
    pair.second.restore_node(1)
    pair.wait_until_alive(1)
    pair.assert_copies_are_equal()


def test_a_process_that_was_failed_over_while_it_hung(make_processes: MakeProcesses) -> None:
    """It finds that it has nothing any more; what only it had is lost."""
    pair = make_processes(member_timeout_seconds=2.0)
    for key in KEYS:
        pair.set(key)
    pair.first.rebalance()
    pair.assert_copies_are_equal()
    pair.second.hang_node(1)
    pair.wait_until_dead(1)
    pair.first.failover(1)
    lost = next(key for key in KEYS if pair.second.bucket.held.of_key(key).state.name == "ACTIVE")
    pair.second.set(lost, b"lost")
    pair.second.restore_node(1)
    pair.wait_until_heard(1)
    pair.settle()
    assert pair.second.bucket.held.of_node(1) == []
    assert pair.first.get(lost).value == b"1"


@pytest.mark.parametrize("hangs", [0, 1])
@pytest.mark.parametrize("is_back", [True, False])
def test_a_move_that_is_given_up(make_processes: MakeProcesses, hangs: int, is_back: bool) -> None:
    """Every vbucket is active where it was, whichever side hung, and another move does it."""
    pair = make_processes(member_timeout_seconds=2.0)
    for key in KEYS:
        pair.set(key)
    if is_back:
        pair.first.rebalance()
        pair.assert_copies_are_equal()
    before = pair.owners()
    pair.home_of(hangs).hang_node(hangs)
    with pytest.raises((TimeoutError, SourceError, ValueError)):
        pair.first.rebalance(remove=0 if is_back else None, timeout_seconds=3.0)
    pair.home_of(hangs).restore_node(hangs)
    pair.wait_until_heard(1)
    pair.settle()
    assert pair.owners() == before
    assert all(pair.active(v).state is VbucketState.ACTIVE for v in range(4))
    pair.first.rebalance(remove=0 if is_back else None)
    pair.settle()
    assert pair.owners().count(1) == (4 if is_back else 2)
    assert _held(pair.first.seeds[1]) == set(KEYS)


def test_writes_go_on_while_vbuckets_move(even: Processes) -> None:
    """Clients that ask again lose nothing; no branch begins, and all is copied in the end."""
    uuids = [even.active(v).failover_log.current_uuid for v in range(4)]
    is_over, written, failures = Event(), list[bytes](), list[Exception]()

    def write() -> None:
        try:
            with KvClient(even.first.seeds, "Administrator", "password", "default") as client:
                while not is_over.is_set():
                    key = b"w%d" % len(written)
                    client.set([(key, b"1")])
                    written.append(key)
        except Exception as error:
            failures.append(error)

    writer = Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            even.first.rebalance(remove=1)
            even.first.restore_node(1)
            even.first.rebalance()
    finally:
        is_over.set()
        writer.join()
    assert failures == []
    assert sorted(even.owners()) == [0, 0, 1, 1]
    even.assert_copies_are_equal()
    assert [even.active(v).failover_log.current_uuid for v in range(4)] == uuids
    assert _held(even.first.seeds[1], written) == set(written)


def _fails_later(order: Callable[[], None]) -> tuple[Thread, list[str]]:
    """Begin what will fail in a thread of its own."""
    failed: list[str] = []

    def run() -> None:
        try:
            order()
        except SourceError as error:
            failed.append(str(error))

    thread = Thread(target=run)
    thread.start()
    return thread, failed


def _wait_for_takeover(cluster: ProducerCluster) -> None:
    bucket = cluster.bucket
    with bucket.copies_moved:
        assert bucket.copies_moved.wait_for(
            lambda: any(c.is_taking_over for v in range(4) for _, c in bucket.copies.of(v)),
            WAIT_SECONDS,
        )


def test_the_taking_process_is_lost_amid_a_move(make_processes: MakeProcesses) -> None:
    """All stays where it was; nothing was lost."""
    pair = make_processes(last_words_seconds=0.2)
    for key in KEYS:
        pair.set(key)
    pair.first.hang_node(0)
    thread, failed = _fails_later(pair.first.rebalance)
    _wait_for_takeover(pair.second)
    pair.second.stop()
    pair.first.restore_node(0)
    thread.join()
    assert "rebalance: 2 vbuckets, the first is 2, did not get to node 2 of 2" in failed[0]
    assert pair.owners() == [0, 0, 0, 0]
    pair.first.failover(1)
    assert _held(pair.first.seeds[0]) == set(KEYS)
    for key in KEYS:
        pair.set(key, b"2")


def test_the_giving_process_is_lost_amid_a_move(make_processes: MakeProcesses) -> None:
    """Its vbuckets go on from their copies."""
    even = make_processes(member_timeout_seconds=2.0)
    for key in KEYS:
        even.set(key)
    even.first.rebalance()
    even.assert_copies_are_equal()
    even.second.hang_node(1)
    thread, failed = _fails_later(lambda: even.first.rebalance(remove=1))
    _wait_for_takeover(even.first)
    even.second.stop()
    thread.join()
    assert "rebalance: 2 vbuckets" in failed[0]
    assert sorted(even.owners()) == [0, 0, 1, 1]
    even.wait_until_dead(1)
    even.first.failover(1)
    assert _held(even.first.seeds[0]) == set(KEYS)


def test_the_first_process_stops_amid_a_move(pair: Processes) -> None:
    """It is given up; the vbuckets are where they were when it starts again."""
    pair.first.hang_node(0)
    given_up: list[BaseException] = []

    def rebalance() -> None:
        try:
            pair.first.rebalance()
        except CancelledError as error:
            given_up.append(error)

    thread = Thread(target=rebalance)
    thread.start()
    _wait_for_takeover(pair.second)
    pair.first.stop()
    thread.join()
    assert len(given_up) == 1
    pair.first.start()
    pair.wait_until_heard(1)
    pair.settle()
    assert pair.owners() == [0, 0, 0, 0]
    assert all(pair.active(v).state is VbucketState.ACTIVE for v in range(4))
    pair.first.rebalance()
    assert sorted(pair.owners()) == [0, 0, 1, 1]
    pair.assert_copies_are_equal()


# --- what cannot be done


def test_orders_are_for_the_first_process(even: Processes) -> None:
    """Others say where that is; the client goes there by itself."""
    first = even.first.seeds[0]
    orders: list[Callable[[], object]] = [
        even.second.rebalance,
        even.second.pause_replication,
        even.second.resume_replication,
        even.second.add_node,
        lambda: even.second.failover(0),
        lambda: even.second.create_scope("s"),
        lambda: even.second.move_vbucket(0, 0),
    ]
    for order in orders:
        with pytest.raises(ValueError, match=f"expected the cluster's first one, at {first}"):
            order()
    with RawClient(even.second.seeds[1]) as client:
        answer = client.log_in().call(m.IoctlSet(b"scope.create", b"s"), Opcode.IOCTL_SET)
        assert (answer.status, first.encode() in answer.value) == (Status.EINVAL, True)
    with AdminClient([even.second.seeds[1]], "Administrator", "password", "default") as admin:
        admin.create_scope("s")
        assert [node.vbuckets for node in admin.nodes()] == [2, 2]
    assert even.first.manifest.scope("s").name == "s"


def test_nodes_of_other_processes_are_theirs_to_hurt(even: Processes) -> None:
    orders: list[Callable[[], None]] = [
        lambda: even.first.kill_node(1),
        lambda: even.first.crash_restart(1),
        lambda: even.first.move_vbucket(even.owners().index(0), 1),
        lambda: even.second.kill_node(0),
    ]
    for order in orders:
        with pytest.raises(ValueError, match="in another process"):
            order()


def test_without_copies_a_process_is_not_failed_over(make_processes: MakeProcesses) -> None:
    pair = make_processes(replicas=0)
    pair.first.rebalance()
    with pytest.raises(ValueError, match="no other living node of this process"):
        pair.first.failover(0)
    with pytest.raises(ValueError, match="expected one of this"):
        pair.first.failover(1)
    assert sorted(pair.owners()) == [0, 0, 1, 1]


@pytest.mark.parametrize("name", [b"cluster.state", b"vbuckets.take", b"vbuckets.leave"])
def test_users_cannot_give_orders_of_the_first_process(pair: Processes, name: bytes) -> None:
    with RawClient(pair.second.seeds[1]) as client:
        answer = client.log_in().call(m.IoctlSet(name, b"{}"), Opcode.IOCTL_SET)
        assert answer.status == Status.EINVAL


def test_orders_between_processes_are_checked(pair: Processes) -> None:
    """What has no meaning is refused and changes nothing; what was done is not done again."""
    password = pair.first.bucket.node_credentials.password.reveal()
    before = pair.second.bucket.map.rev
    with RawClient(pair.second.seeds[1]) as client:
        client.log_in(user="@replication", password=password)
        for name, value in [(b"cluster.state", b"{}"), (b"vbuckets.take", b"1"), (b"x", b"")]:
            answer = client.call(m.IoctlSet(name, value), Opcode.IOCTL_SET)
            assert answer.status == Status.EINVAL
        old = ClusterState.of(pair.first.bucket, 0).encode()
        client.ok(m.IoctlSet(b"cluster.state", old), Opcode.IOCTL_SET)
        client.ok(m.IoctlSet(b"vbuckets.leave"), Opcode.IOCTL_SET)
    assert pair.second.bucket.map.rev == before


def test_who_may_join(make_processes: MakeProcesses, tmp_path: Path) -> None:
    pair = make_processes()
    first = pair.first.seeds[0]
    with pytest.raises(ConfigError, match="found a data folder or several nodes"):
        JoinedCluster(ClusterSettings(data_folder=tmp_path), first)
    with pytest.raises(ConfigError, match="found a data folder or several nodes"):
        JoinedCluster(ClusterSettings(nodes=2), first)
    with pytest.raises(AuthenticationError):
        JoinedCluster(ClusterSettings(users={"Administrator": "wrong"}), first)
    with pytest.raises(BucketError):
        JoinedCluster(ClusterSettings(bucket="other"), first)
    with pytest.raises(LocalProtocolError, match="ran already"):
        pair.second.stop()
        pair.second.start()
    kept = ClusterSettings(vbuckets=2, data_folder=tmp_path)
    with (
        ProducerCluster(kept) as folder,
        pytest.raises(SourceError, match="found a cluster that keeps its bucket in a data folder"),
    ):
        JoinedCluster(ClusterSettings(), folder.seeds[0])


def test_a_node_that_says_nonsense_does_not_join(pair: Processes) -> None:
    with RawClient(pair.first.seeds[0]) as client:
        client.log_in()
        for value in (b"", b"1", b'{"what":1}', b'{"kv":"x"}', b'{"kv":65536,"mgmt":1}'):
            answer = client.call(m.IoctlSet(b"node.join", value), Opcode.IOCTL_SET)
            assert answer.status == Status.EINVAL
    assert pair.first.bucket.map.node_count == 2


def test_who_is_no_administrator_may_not_join(make_processes: MakeProcesses) -> None:
    """He would learn how nodes sign in."""
    pair = make_processes(users={"Administrator": "password", "guest": "secret-of-guest"})
    with pytest.raises(SourceError, match="lacks the Administrator privilege"):
        JoinedCluster(ClusterSettings(users={"guest": "secret-of-guest"}), pair.first.seeds[0])


def test_joining_through_a_process_that_joined(pair: Processes) -> None:
    with JoinedCluster(ClusterSettings(seed=3), pair.second.seeds[1]) as third:
        assert third.number == 2
        assert third.bucket.led_by == pair.first.seeds[0]


def test_secrets_are_not_shown(pair: Processes, caplog: pytest.LogCaptureFixture) -> None:
    invitation = pair.first.members.invitation()
    assert Invitation.decode(invitation.encode()) == invitation
    password = pair.second.bucket.node_credentials.password.reveal()
    holders = (pair.first.bucket, pair.second.bucket, pair.second.bucket.users, invitation)
    for holder in holders:
        shown = getattr(holder, "__dict__", {})
        assert password not in f"{holder} {holder!r} {shown}"
    assert password not in caplog.text
    with pytest.raises(RemoteProtocolError, match="invitation to a cluster: malformed") as error:
        Invitation.decode(invitation.encode()[:-1])
    assert password not in repr(error.value)

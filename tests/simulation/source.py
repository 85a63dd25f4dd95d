"""The source of a simulation: a cluster of producer nodes, its writers, and their misfortunes."""

from contextlib import suppress
from random import Random
from typing import NamedTuple

from dcp.errors import DcplakeError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from tests.simulation.checked import BAD
from tests.simulation.faults import Counts, Options
from tests.simulation.typed import document
from tests.simulation.virtual_loop import EPOCH_SECONDS, Incident, VirtualLoop


class Published(NamedTuple):
    """Up to which seqno, on which branch, the lake has published a vbucket."""

    seqno: int
    uuid: int


class Source:
    """A cluster; all of it is called between two turns of the loop."""

    def __init__(
        self, loop: VirtualLoop, options: Options, random: Random, counts: Counts, seed: int
    ) -> None:
        self._loop, self._options, self._random, self._counts = loop, options, random, counts
        self._ahead_seconds = 0.0
        self.cluster = ProducerCluster(
            ClusterSettings(
                nodes=options.nodes,
                vbuckets=options.vbuckets,
                seed=seed,
                clock=self._clock,
                checkpoint_items=options.checkpoint_items,
                replicas=min(options.replicas, options.nodes - 1),
                unpersisted_seqnos=options.unpersisted_seqnos,
                rules=options.rules,
            )
        )
        self._keys = [b"key-%d" % number for number in range(options.keys)]
        self.published: dict[int, Published] = {}
        """What the lake has published, by vbucket: to tell whether a fault took any of it back."""

    def _clock(self) -> float:
        return EPOCH_SECONDS + self._loop.time() + self._ahead_seconds

    @property
    def vbuckets(self) -> range:
        """All vbuckets."""
        return range(self._options.vbuckets)

    # --- writers

    def write(self) -> None:
        """Write, delete and expire a few documents."""
        random, cluster = self._random, self.cluster
        with cluster.batch():
            for _ in range(random.randint(1, 6)):
                key, what = random.choice(self._keys), random.random()
                with suppress(RefusedError, OSError):
                    if what < 0.65:
                        expiry = random.choice((0, 0, 0, 5))
                        number = random.randrange(10**6)
                        padding = "x" * random.randrange(self._options.value_bytes)
                        value = f'{{"n":{number},"p":"{padding}"}}'.encode()
                        if self._options.contracts:
                            value = document(random, number, padding)
                        if self._options.gate and random.random() < 0.1:
                            value = BAD
                        cluster.set(key, value, expiry)
                    elif what < 0.93:
                        cluster.delete(key)
                    else:
                        self._ahead_seconds += 10
                        cluster.expire_due()

    def burst(self) -> None:
        """Write more at once than a small window holds."""
        with self.cluster.batch(), suppress(OSError):
            for key in self._keys:
                padding = "x" * self._options.value_bytes
                self.cluster.set(key, f'{{"p":"{padding}"}}'.encode())
        self._counts.add("burst of writes")

    # --- faults: each counts itself where it happened

    def _node(self) -> int:
        return self._random.randrange(self._options.nodes)

    def _seqnos(self) -> list[tuple[int, int]]:
        """Return for each vbucket its high seqno, and up to which the cluster has what is
        published: 0 if an earlier fault took that back.
        """
        found = []
        for vbucket in self.vbuckets:
            seqno, uuid = self.published.get(vbucket, Published(0, 0))
            is_there = self.cluster.failover_log(vbucket).uuid_at(seqno) == uuid
            found.append((self.cluster.high_seqno(vbucket), seqno if is_there else 0))
        return found

    def _note_losses(self, what: str, before: list[tuple[int, int]]) -> bool:
        """Count what a fault lost; return whether published rows were among it."""
        after = [high for high, _ in self._seqnos()]
        self._counts.add(what)
        if any(now < high for now, (high, _) in zip(after, before, strict=True)):
            self._counts.add(f"{what} that lost writes")
        taken_back = any(now < published for now, (_, published) in zip(after, before, strict=True))
        if taken_back:
            self._counts.add("published writes were lost")
        return taken_back

    def crash(self) -> None:
        """A node is killed and comes back at once, without what was not on its disk."""
        before = self._seqnos()
        lost = self._random.choice((None, None, 1, 2, 4))
        with suppress(ValueError):
            self.cluster.crash_restart(self._node(), lost)
            taken_back = self._note_losses("node crashed", before)
            assert not (taken_back and self._options.persist_to and lost is None), (
                "persist_to: a crash lost published rows, which no disk had"
            )

    def disk_loss(self) -> None:
        """A node comes back with an empty disk."""
        before = self._seqnos()
        with suppress(ValueError):
            self.cluster.crash_restart(self._node(), 10**9)
            self._note_losses("node lost its disk", before)

    def failover(self) -> None:
        """A node is lost, its vbuckets go to their replicas; it is back empty, for a share."""
        node, before = self._node(), self._seqnos()
        with suppress(ValueError):
            self.cluster.failover(node)
            self._note_losses("failover", before)
            if self._random.random() < 0.5:
                self.write()
            self._bring_back(node)

    def _bring_back(self, node: int) -> None:
        self.cluster.restore_node(node)
        for vbucket in self.vbuckets:
            if self._random.random() < 0.4:
                with suppress(ValueError):
                    self.cluster.move_vbucket(vbucket, node)

    def double_failover(self) -> None:
        """Several failovers in a row: branches that nobody read."""
        for _ in range(self._random.randint(2, 3)):
            self.failover()
            self.write()
        self._counts.add("failovers in a row")

    def move(self) -> None:
        """A vbucket is handed over to another node."""
        vbucket, node = self._random.choice(self.vbuckets), self._node()
        with suppress(ValueError):
            if self.cluster.vbucket_owner(vbucket) != node:
                self.cluster.move_vbucket(vbucket, node)
                self._counts.add("vbucket moved")

    def rebalance(self) -> None:
        """Vbuckets move by takeover streams, from a node that has more of them than it should."""
        with suppress(ValueError):
            node = self._node()
            for vbucket in self.vbuckets:
                self.cluster.move_vbucket(vbucket, node)
        before = [self.cluster.vbucket_owner(vbucket) for vbucket in self.vbuckets]
        with suppress(ValueError, TimeoutError, DcplakeError):
            self.cluster.rebalance(timeout_seconds=5.0)
            if before != [self.cluster.vbucket_owner(vbucket) for vbucket in self.vbuckets]:
                self._counts.add("rebalance moved vbuckets")

    def purge(self) -> None:
        """Tombstones are purged."""
        vbucket = self._random.choice(self.vbuckets)
        up_to = self._random.choice((None, self.cluster.high_seqno(vbucket) // 2))
        if self.cluster.purge_tombstones(vbucket, up_to):
            self._counts.add("tombstones purged")

    def hang(self) -> None:
        """A node stops reading and answering, for a while."""
        node = self._node()
        self.cluster.hang_node(node)
        self._counts.add("node hung")
        self._later(lambda: self._undo(node))

    def refuse(self) -> None:
        """A node takes no new connections, for a while."""
        node = self._node()
        self.cluster.refuse_node(node)
        self._counts.add("node refused connections")
        self._later(lambda: self._undo(node))

    def _undo(self, node: int) -> None:
        with suppress(ValueError):
            self.cluster.restore_node(node)

    def _later(self, undo: Incident) -> None:
        self._loop.incident_at(self._loop.time() + self._random.uniform(0.2, 4.0), undo)

    def pause_replication(self) -> None:
        """Replicas stand still for a while."""
        self.cluster.pause_replication()
        self._counts.add("replication paused")
        self._later(self.cluster.resume_replication)

    def snapshot_cut(self) -> None:
        """A connection ends in the middle of a snapshot."""
        with self.cluster.batch():
            self.cluster.snapshot_cut_after(self._random.randint(1, 8))

    def flush(self) -> None:
        """All documents of the collection are dropped at once."""
        self.cluster.flush_collection("_default", "_default")
        self._counts.add("collection flushed")

    def collections(self) -> None:
        """Another collection comes, or goes; it never has documents."""
        try:
            self.cluster.create_collection("_default", "other")
            self._counts.add("collection created")
        except RefusedError:
            self.cluster.drop_collection("_default", "other")
            self._counts.add("collection dropped")

    def calm(self) -> None:
        """Let all be well."""
        self.cluster.resume_replication()
        for node in range(self._options.nodes):
            self._undo(node)
        if self._options.gate:
            with self.cluster.batch():
                for key in self._keys:  # somebody corrects what is bad
                    self.cluster.set(key, b'{"n":1}')
        with self.cluster.bucket.lock:  # the newest seqnos come to the disk, too
            for each in map(self.cluster.bucket.table.numbered, self.vbuckets):
                each.data.persistence.flush(each.data.high_seqno)
        with self.cluster.batch():
            self.cluster.faults.clear()

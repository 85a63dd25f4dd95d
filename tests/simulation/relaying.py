"""The relay of a simulation: the product's, on a folder of its own; it may die and come back."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from dcp.errors import SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials
from dcp.relay.bucket import NODE
from dcp.relay.settings import RelaySettings
from dcp.relay.thread import Relay
from tests.simulation.faults import Counts
from tests.simulation.network import Network

_MEMORY: Final = Path("/dev/shm")


class RelayInFolder:
    """A relay that is killed by taking a copy of its folder, as a crash leaves it."""

    def __init__(
        self,
        cluster: ProducerCluster,
        network: Network,
        credentials: Credentials,
        random: Random,
        counts: Counts,
        seed: int,
    ) -> None:
        self._network, self._random, self._counts = network, random, counts
        self._folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        self._lives = 0
        self._port = network.free_port()
        self._upstream = tuple(cluster.seeds)
        self._credentials, self._seed = credentials, seed
        self._window_bytes = random.choice((4096, 65_536))
        self.relay: Relay | None = None
        self.is_down = False

    @property
    def seeds(self) -> list[str]:
        """Where it listens, or did."""
        return [f"127.0.0.1:{self._port}"]

    def _data(self) -> Path:
        return self._folder / str(self._lives)

    def start(self) -> None:
        """Begin on the folder as it is; not yet where no node answers and the folder is new."""
        settings = RelaySettings(
            upstream=self._upstream,
            bucket="default",
            credentials=self._credentials,
            data_folder=self._data(),
            window_bytes=self._window_bytes,
            consumer_ack_seconds=0.5,
            flush_seconds=0.05,
            listen=("127.0.0.1", self._port),
            seed=self._seed + self._lives,
        )
        with suppress(SourceError):
            relay = Relay(settings)
            relay.start()
            self.relay = relay

    def crash(self, *, keeps_data: bool) -> None:
        """Kill it, and begin another one soon, with what was on its disk or without."""
        relay, self.relay = self.relay, None
        if relay is None:
            return
        before = self._data()
        self._lives += 1
        if keeps_data:
            shutil.copytree(before, self._data())
        relay.nodes.loop.call(relay.nodes.at(NODE).kill())
        relay.stop()
        shutil.rmtree(before)
        self._counts.add("relay crashed" if keeps_data else "relay crashed and lost its disk")
        loop = self._network.loop
        loop.incident_at(loop.time() + self._random.uniform(0.0, 2.0), self.start_again)

    def start_again(self) -> None:
        """Begin, if none runs."""
        if self.relay is None:
            self.start()

    def cut_upstream(self) -> None:
        """Cut one of its connections to a node."""
        links = [each for each in self._network.links.values() if each.owner == "loop"]
        links = [each for each in links if each.up.error is None]
        if links:
            self._random.choice(links).cut()
            self._counts.add("relay's upstream cut")

    def close(self) -> None:
        """Remove the folder."""
        if self.relay is not None:
            self.relay.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

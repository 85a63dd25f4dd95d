"""A relay in a thread of its own: one bucket in a data folder, its links upstream, and its node.

All methods may be called from any thread. Clients can connect when it is known of every vbucket
which branches there are, or when that has taken too long: what is not known is answered ETMPFAIL.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError, NodeUnavailableError
from dcp.producer.background import keep_running
from dcp.producer.bucket_record import BucketRecord
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.cluster_nodes import ClusterNodes
from dcp.producer.dcp_connection import DcpConnection
from dcp.producer.entrance import OwnEntrance
from dcp.producer.server import Node
from dcp.producer.statistic import Statistic
from dcp.relay.commands import relay_commands
from dcp.relay.probe import BucketFacts, ask_cluster
from dcp.relay.regulator import TICK_SECONDS, Regulator
from dcp.relay.relay_bucket import NODE, RelayBucket
from dcp.relay.relay_statistics import RelaySnapshot, snapshot_of
from dcp.relay.settings import RelaySettings
from dcp.relay.upstream import Upstream
from dcp.wire.vocabulary import Status

_LOG = logging.getLogger(__name__)
_INFORMED_SECONDS: Final = 10.0
"""How long clients wait until it is known which branches vbuckets have, and how far they are."""
_TELL_SECONDS: Final = 60.0
_FIRST_TOLD_SECONDS: Final = 2.0
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104  (the operator says where to listen)
_SAME_HOST: Final = "$HOST"
"""What clients take for the host that told them the map."""


class Relay(ClusterNodes):
    """A relay; use it as a context manager, or ``start`` and ``stop``."""

    def __init__(self, settings: RelaySettings) -> None:
        """Open the data folder, or begin one for the bucket that the cluster has.

        Raises:
            SourceError: no node of the cluster answers and the folder is new, or the cluster
                refuses us, or another process uses the folder.
            ConfigError: the folder is for another bucket.
        """
        self.relay_settings = settings
        facts = _facts_of(settings)
        bucket = RelayBucket(settings.served(facts.uuid, facts.vbuckets))
        super().__init__(bucket.settings, OwnEntrance(bucket))
        self.relay_bucket = bucket
        self.upstream = Upstream(bucket, settings)
        self.regulator = Regulator(
            bucket,
            settings.flow_spec,
            settings.window_bytes,
            settings.hold_seconds,
            settings.consumer_ack_seconds,
            self.upstream,
        )
        self.regulator.clients = lambda: self._nodes[NODE].clients

    def _node(self, number: int, address: NodeAddress) -> Node:
        commands = relay_commands(self.relay_bucket, self)
        return Node(self.bucket, number, address, self._tls, self._turns, commands)

    async def _open_nodes(self) -> None:
        with self.bucket.lock:
            self.upstream.start(self.regulator)
        self._background.append(asyncio.ensure_future(keep_running("upstream", self.upstream.run)))
        with suppress(TimeoutError):
            async with asyncio.timeout(_INFORMED_SECONDS):
                await self.upstream.is_informed.wait()
        try:
            await super()._open_nodes()
        except BaseException:
            await self._end_background()
            raise
        self._background.append(
            asyncio.ensure_future(keep_running("regulator", self.regulator.run))
        )
        self._background.append(asyncio.ensure_future(keep_running("relay watch", self._watch)))

    # --- what commands and people ask

    def came_early(self, consumer: DcpConnection, vbucket: int) -> None:
        """Count a consumer as there that could not have a stream."""
        self.regulator.came_early(consumer, vbucket)

    def set_tag(self, consumer: DcpConnection, value: bytes) -> Status:
        """Let a consumer belong to the group with a tag; EINVAL for what is none."""
        return self.regulator.receivers.set_tag(consumer, value)

    def statistics(self) -> Iterator[Statistic]:
        """Return what STAT ``relay`` answers."""
        return self.snapshot().statistics()

    def snapshot(self) -> RelaySnapshot:
        """Return how everything stands."""
        with self.bucket.lock:
            return snapshot_of(
                self.relay_bucket, self.regulator, self.upstream.links, self.relay_settings
            )

    async def _watch(self) -> None:
        """Count how long windows are full, and say now and then how everything stands."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        told_at = looked_at + _FIRST_TOLD_SECONDS - _TELL_SECONDS
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            with self.bucket.lock:
                for link in self.upstream.links:
                    if link.connection is not None and link.connection.window.is_full:
                        link.full_seconds += now - looked_at
            looked_at = now
            if now - told_at >= _TELL_SECONDS:
                told_at = now
                self._tell()

    def _tell(self) -> None:
        found = self.snapshot()
        _LOG.info(
            "%d consumers, %d streams, %d of them from disk; %d ejections; %d bytes held",
            found.consumers,
            found.streams,
            found.streams_from_disk,
            found.ejections,
            found.held_bytes,
        )
        if found.disk_trouble:
            text = "%s; %d bytes wait for the disk"
            _LOG.warning(text, found.disk_trouble, found.disk_waiting_bytes)
        for link in found.links:
            if link.waits_for:
                _LOG.info("%s: waits for consumer %s", link.node, link.waits_for)
        for group in found.groups:
            if group.members < group.required:
                _LOG.info("%s", group)

    def _follow_map(self) -> None:
        """Do nothing: there is one node, and it has all."""

    async def _end_background(self) -> None:
        await self.upstream.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()

    async def _shut_down(self) -> None:
        await self._end_background()
        await super()._shut_down()

    def _tell_addresses(self) -> None:
        """Let clients come back to where they found us, where we listen on all addresses."""
        super()._tell_addresses()
        if self.settings.host in _ALL_ADDRESSES:
            found = [replace(each, host=_SAME_HOST) for each in self.bucket.map.addresses]
            self.bucket.map.set_addresses(found)


def _facts_of(settings: RelaySettings) -> BucketFacts:
    """Return what the cluster says of the bucket; where no node answers, what the folder says."""
    try:
        return ask_cluster(settings, settings.credentials)
    except NodeUnavailableError as error:
        found = _recorded(settings.data_folder / "bucket.json")
        if found is None:
            raise
        _LOG.warning("%s; serving what the data folder holds, and trying again", error)
        return found


def _recorded(record: Path) -> BucketFacts | None:
    """Return which bucket a data folder was filled from; None where it has none yet.

    Raises:
        ConfigError: the record is damaged.
    """
    try:
        found = BucketRecord.decode(record.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{record}: {error}") from None
    return BucketFacts(found.uuid, found.vbuckets)

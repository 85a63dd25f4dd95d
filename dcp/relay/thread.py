"""Runs a relay in its own thread: its bucket, its links to the cluster, its node and its log.

Any thread may call ``start``, ``stop`` and ``figures``. ``upstream`` belongs to the event loop and
needs the bucket's lock. Clients can connect once all failover logs are known, or after a time
limit; until a failover log is known, the relay answers requests about it with ETMPFAIL.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dcp.client.probe import ask_seeds
from dcp.errors import ConfigError, NodeUnavailableError, SecretError
from dcp.relay.bucket import NODE, RelayBucket
from dcp.relay.commands import relay_commands
from dcp.relay.figures_reader import log_figures, relay_figures
from dcp.relay.settings import RelaySettings
from dcp.relay.upstream import Upstream
from dcp.relay_figures import RelayFigures
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.serving import Serving, Work
from dcp.server.replication.background import keep_running
from dcp.server.storage.bucket_record import BucketRecord

_LOGGER = logging.getLogger(__name__)
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104  (the operator says where to listen)
_SAME_HOST: Final = "$HOST"
"""Host name in the map that clients replace by the host which sent the map, so they return here."""
_INFORMED_SECONDS: Final = 10.0
"""Clients cannot connect for so long at most, while failover logs and high seqnos are unknown."""
_LOG_SECONDS: Final = 60.0
_FIRST_LOG_SECONDS: Final = 2.0


class Relay(Serving):
    """A relay; use it as a context manager, or call ``start`` and ``stop``."""

    def __init__(self, settings: RelaySettings) -> None:
        """Open the data folder, or create it for the cluster's bucket.

        Raises:
            SourceError: the cluster rejects the relay, or another process uses the folder, or the
                folder is new and no node answers.
            ConfigError: the folder belongs to another bucket.
        """
        self.relay_settings = settings
        self.relay_bucket = bucket = RelayBucket(settings.served(*_uuid_and_vbuckets(settings)))
        self.upstream = Upstream(bucket, settings)
        regulator = self.upstream.regulator
        nodes = ClusterNodes(
            bucket,
            relay_commands(bucket, regulator),
            _SAME_HOST if bucket.settings.host in _ALL_ADDRESSES else None,
        )
        bucket.tell_figures = self.figures
        regulator.follow(lambda: nodes.at(NODE).clients)
        self._following: asyncio.Task[None] | None = None
        super().__init__(nodes)

    def figures(self) -> RelayFigures:
        with self.relay_bucket.lock:
            return relay_figures(self.relay_bucket, self.upstream, self.relay_settings)

    # --- in the loop

    async def _opening(self) -> None:
        """Connect; return when failover logs and high seqnos are known, or after 10 seconds."""
        with self.bucket.lock:
            self.upstream.start()
        self._following = asyncio.ensure_future(keep_running("upstream", self.upstream.run))
        with suppress(TimeoutError):
            async with asyncio.timeout(_INFORMED_SECONDS):
                await self.upstream.is_informed.wait()

    def _opened(self) -> Mapping[str, Work]:
        return {"regulator": self.upstream.regulator.run, "relay watch": self._watch}

    async def _ending(self) -> None:
        await self.upstream.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _watch(self) -> None:
        await asyncio.sleep(_FIRST_LOG_SECONDS)
        while True:
            log_figures(self.figures())
            await asyncio.sleep(_LOG_SECONDS)


def _uuid_and_vbuckets(settings: RelaySettings) -> tuple[str, int]:
    """Return the bucket's uuid ("" from old servers) and number of vbuckets.

    They come from the cluster, or from the data folder if no node answers.
    """
    seeds = [str(address) for address in settings.addresses]
    try:
        bucket_map, _ = ask_seeds(
            seeds, settings.connection, settings.credentials, named="--upstream"
        )
    except SecretError as error:
        raise SecretError(f"{settings.named('tls')}: {error}") from None
    except NodeUnavailableError as error:
        found = _recorded(settings.data_folder / "bucket.json")
        if found is None:
            raise
        _LOGGER.warning("%s; the relay serves its data folder, and tries again", error)
        return found.uuid, found.vbuckets
    return bucket_map.bucket_uuid, bucket_map.vbucket_count


def _recorded(record: Path) -> BucketRecord | None:
    """Return the data folder's record, or None; raise ConfigError if it is damaged or
    unreadable.
    """
    try:
        return BucketRecord.decode(record.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{record}: {error}") from None

"""Runs a relay in a thread of its own: its bucket, its links upstream, and its node.

``start``, ``stop`` and ``figures`` may be called from any thread; what ``feeding`` has is the
loop's, with the bucket's lock held. Clients can connect when it is known of every vbucket
which branches there are, or when that has taken too long: what is not known is answered ETMPFAIL.
"""

import logging
from pathlib import Path
from typing import Final

from dcp.client.probe import ask_seeds
from dcp.errors import ConfigError, NodeUnavailableError
from dcp.relay.commands import relay_commands
from dcp.relay.relay_bucket import NODE, RelayBucket
from dcp.relay.relay_figures import RelayFigures
from dcp.relay.relay_settings import RelaySettings
from dcp.relay.relay_tasks import RelayTasks
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.serving import Serving
from dcp.server.storage.bucket_record import BucketRecord

_LOG = logging.getLogger(__name__)
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104  (the operator says where to listen)
_SAME_HOST: Final = "$HOST"
"""What clients take for the host that told them the map: they come back to where they found us."""


class Relay(Serving):
    """A relay; use it as a context manager, or ``start`` and ``stop``."""

    def __init__(self, settings: RelaySettings) -> None:
        """Open the data folder, or begin one for the bucket that the cluster has.

        Raises:
            SourceError: no node of the cluster answers and the folder is new, or the cluster
                refuses us, or another process uses the folder.
            ConfigError: the folder is for another bucket.
        """
        self.relay_settings = settings
        self.relay_bucket = bucket = RelayBucket(settings.served(*_uuid_and_vbuckets(settings)))
        self.feeding = feeding = RelayTasks(bucket, settings)
        nodes = ClusterNodes(
            bucket,
            relay_commands(bucket, feeding),
            _SAME_HOST if bucket.settings.host in _ALL_ADDRESSES else None,
        )
        bucket.tell_figures = feeding.figures
        feeding.regulator.follow(lambda: nodes.at(NODE).clients)
        super().__init__(nodes, feeding)

    def figures(self) -> RelayFigures:
        return self.feeding.figures()


def _uuid_and_vbuckets(settings: RelaySettings) -> tuple[str, int]:
    """Return the uuid, which an old server does not tell, and the vbucket count of the bucket.

    The cluster tells them; where no node answers, the data folder does.
    """
    seeds = [str(address) for address in settings.upstream]
    try:
        bucket_map, _ = ask_seeds(
            seeds, settings.connection, settings.credentials, named="--upstream"
        )
    except NodeUnavailableError as error:
        found = _recorded(settings.data_folder / "bucket.json")
        if found is None:
            raise
        _LOG.warning("%s; serving what the data folder holds, and trying again", error)
        return found.uuid, found.vbuckets
    return bucket_map.bucket_uuid, bucket_map.vbucket_count


def _recorded(record: Path) -> BucketRecord | None:
    """Return the record of the bucket that a data folder was filled from, if any.

    Raises:
        ConfigError: the record is damaged.
    """
    try:
        return BucketRecord.decode(record.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{record}: {error}") from None

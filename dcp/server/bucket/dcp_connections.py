"""The open DCP connections of a bucket, and older ones of the same name that still end."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count

from dcp.server.bucket.dcp_connection import DcpConnection, SharedByConnections
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import ConnectionKey, DcpClient
from dcp.server.vbucket.changed_vbuckets import ChangedVbuckets
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire.vocabulary import EndReason


class DcpConnections(Mapping[ConnectionKey, DcpConnection]):
    """Open connections by node and name; callers hold the bucket's lock.

    A new connection closes an older one of the same name.
    """

    def __init__(
        self, shared: SharedByConnections, cluster_map: ServedClusterMap, changes: ChangedVbuckets
    ) -> None:
        self.shared = shared
        self._map, self._changes = cluster_map, changes
        self._open: dict[ConnectionKey, DcpConnection] = {}
        self._displaced: set[DcpConnection] = set()
        self._numbers = count(2)

    def __getitem__(self, key: ConnectionKey) -> DcpConnection:
        return self._open[key]

    def __iter__(self) -> Iterator[ConnectionKey]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, client: DcpClient, close_session: Callable[[], None]) -> DcpConnection:
        key, cursor_name = client.key, client.display_name
        older = self._open.get(key)
        if older is not None:
            older.close_session()
            if older.is_internal:  # a node's cursors pin memory, so they go at once
                older.drop_streams()
            else:
                self._displaced.add(older)
        # The older connection ends its streams in turns. Until then its cursors hold their
        # names, so the new connection's cursors need others.
        if any(each.key == key for each in self._displaced):
            cursor_name = f"{next(self._numbers)}:{cursor_name}"
        connection = DcpConnection(client, self.shared, close_session, cursor_name)
        self._open[key] = connection
        self.shared.counters.dcp_connections_opened += 1
        self.shared.counters.flows[key] = connection.flow
        return connection

    def close(self, connection: DcpConnection) -> None:
        """End a connection's streams and forget it, unless a newer one took its name."""
        connection.drop_streams()
        self._displaced.discard(connection)
        if self._open.get(connection.key) is connection:
            del self._open[connection.key]
            self.shared.counters.flows.pop(connection.key, None)

    def end_streams(
        self,
        vbucket: int,
        node: int | None = None,
        *,
        reason: EndReason = EndReason.STATE_CHANGED,
        spared: ActiveStream | None = None,
    ) -> None:
        """End the streams of a vbucket on ``node`` (None: its owner), except ``spared``."""
        at = self._map.owner(vbucket) if node is None else node
        for connection in list(self._open.values()):
            if connection.key[0] == at:
                connection.end_streams(vbucket, reason, spared)
        self._changes.add(vbucket)

    def cursors_dropped(self, data: VbucketData, cursors: tuple[str, ...]) -> None:
        if cursors:
            for connection in self._open.values():
                connection.cursors_dropped(data, cursors)

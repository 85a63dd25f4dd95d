from dcp.server.model.cluster_map import EPOCH, ServedClusterMap
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Magic, ServerOpcode


class MapNotifier:
    """Knows which revision of the cluster map one client has, and what to send next.

    It skips intermediate revisions. A client gets the map in the answer to GET_CLUSTER_CONFIG, in
    the body of NOT_MY_VBUCKET, or in a notification. A brief notification only names the revision
    (kv_engine ``daemon/protocol/mcbp/set_cluster_config_command_context.cc``,
    ``daemon/cookie.cc``).
    """

    def __init__(self, cluster_map: ServedClusterMap) -> None:
        self._map = cluster_map
        # A client that just connected asks for the map by itself.
        self._pushed_rev = cluster_map.rev
        self._sent_rev = 0
        self._is_due = False

    def forget(self) -> None:
        """Note that the client selects a bucket, of which it has no map yet."""
        self._sent_rev = 0

    def sent(self) -> None:
        self._sent_rev = self._pushed_rev = self._map.rev

    def due(self) -> None:
        self._is_due = True

    def notification(self, bucket: str, node: int, features: frozenset[int]) -> Frame | None:
        is_due, self._is_due = self._is_due, False
        is_brief = HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF in features
        is_wanted = is_brief or HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION in features
        if not is_due or not is_wanted or self._pushed_rev >= self._map.rev:
            return None
        self.sent()
        config = b"" if is_brief else self._map.as_json(node)
        body = m.ClustermapNotification(bucket.encode(), config, EPOCH, self._map.rev)
        return encode(
            body,
            ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
            magic=Magic.SERVER_REQUEST,
            datatype=0 if is_brief else int(Datatype.JSON),
        )

    def for_refusal(self, node: int, features: frozenset[int]) -> bytes:
        """Return the map for NOT_MY_VBUCKET; empty if the client has it and wants it only once."""
        wants_it_once = HelloFeature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP in features
        if wants_it_once and self._sent_rev >= self._map.rev:
            return b""
        self.sent()
        return self._map.as_json(node)

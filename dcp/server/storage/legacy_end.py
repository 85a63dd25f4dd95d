"""Tracks the end of disk snapshots for clients without Collections: the last item shown to them.

What such a client sees is of the default collection; SEQNO_ADVANCED, which would stand for anything
else at a snapshot's end, is not for it. kv_engine keeps the same number beside its items
(``engines/ep/src/collections/kvstore.h``, PersistedStats: maxLegacyDCPSeqno).
"""

from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.versions import Version


class LegacyEnd:
    """The seqnos of the newest items of the default collection that are on disk; 0 without any.

    ``visible`` is of documents and tombstones, ``newest`` of prepares and aborts too.
    """

    def __init__(self, visible: int = 0, newest: int = 0) -> None:
        self.visible = visible
        self.newest = max(visible, newest)

    def note(self, version: Version) -> None:
        """Take an item that is on disk now; in the order of seqnos."""
        if version.emptied_collection == DEFAULT_ID:
            self.visible = self.newest = 0
        elif version.collection == DEFAULT_ID and version.event is None:
            self.newest = version.seqno
            if version.is_visible:
                self.visible = version.seqno

"""The end of disk snapshots for clients without Collections.

Such clients get only items of the default collection, and no SEQNO_ADVANCED. So their snapshot must
end at the last item that they get. kv_engine stores the same number in
``engines/ep/src/collections/kvstore.h`` (PersistedStats: maxLegacyDCPSeqno).
"""

from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.versions import Version


class LegacyEnd:
    """The newest seqnos of the default collection on disk; 0 if there is none."""

    def __init__(self, visible: int = 0, newest: int = 0) -> None:
        self.visible = visible
        """Counts documents and tombstones."""
        self.newest = max(visible, newest)
        """Also counts prepares and aborts."""

    def note(self, version: Version) -> None:
        """Add an item that is on disk now; call it in seqno order."""
        if version.emptied_collection == DEFAULT_ID:
            self.visible = self.newest = 0
        elif version.collection == DEFAULT_ID and version.event is None:
            self.newest = version.seqno
            if version.is_visible:
                self.visible = version.seqno

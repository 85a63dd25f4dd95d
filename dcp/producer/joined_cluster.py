"""A process that is one node of a cluster which another one began (``joining.py``)."""

from dcp.producer.cluster import ProducerCluster
from dcp.producer.joining import Joining
from dcp.producer.settings import ClusterSettings


class JoinedCluster(ProducerCluster):
    """A cluster that is entered by joining; all else is as in the process that began it."""

    def __init__(self, settings: ClusterSettings, first: str) -> None:
        """Ask the process at ``first`` (``host:port``) what its cluster is; see ``Joining``."""
        self._joining = Joining(settings, first)
        super().__init__(self._joining.settings, self._joining)

    @property
    def number(self) -> int:
        """The index of its node; below 0 before it has joined."""
        return self._joining.number

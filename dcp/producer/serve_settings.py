"""The settings of `dcplake serve`."""

from dataclasses import dataclass

from dcp.seeds import PLAIN_PORT
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.setting_keys import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(ClusterSettings):
    """A cluster in a process of its own, which runs for long: it records no history for tests."""

    port: int = key_of(ClusterSettings, "port", default=PLAIN_PORT)
    expiry_pager_seconds: float = key_of(ClusterSettings, "expiry_pager_seconds", default=1.0)
    record_seqnos: bool = key_of(ClusterSettings, "record_seqnos", default=False)
    record_branches: bool = key_of(ClusterSettings, "record_branches", default=False)

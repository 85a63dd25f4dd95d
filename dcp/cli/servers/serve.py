"""``dcplake serve``: the embedded producer as a process of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount
from dcp.cli.terminal.logs import log_end
from dcp.producer.cluster_settings import ClusterSettings
from dcp.seeds import PLAIN_PORT
from dcp.setting_keys import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerProcessSettings(ClusterSettings):
    """A cluster in a process of its own, which runs for long: it records no history for tests."""

    port: int = key_of(ClusterSettings, "port", default=PLAIN_PORT)
    expiry_pager_seconds: float = key_of(ClusterSettings, "expiry_pager_seconds", default=1.0)
    record_seqnos: bool = key_of(ClusterSettings, "record_seqnos", default=False)
    record_branches: bool = key_of(ClusterSettings, "record_branches", default=False)


@takes_settings
def run(
    *, settings: Annotated[Mapping[str, Any], ProducerProcessSettings], account: ProducerAccount
) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve

    serve(ProducerProcessSettings(users={account.username: account.password()}, **settings))
    log_end("dcplake serve", "stopped", 0, as_json=False)
    return 0

"""``dcplake serve``: the embedded producer as a process of its own."""

from collections.abc import Mapping
from typing import Annotated, Any

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount
from dcp.cli.terminal.logs import log_end
from dcp.producer.serve_settings import ServeSettings


@takes_settings
def run(*, settings: Annotated[Mapping[str, Any], ServeSettings], account: ProducerAccount) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve

    serve(ServeSettings(users={account.username: account.password()}, **settings))
    log_end("dcplake serve", "stopped", 0, as_json=False)
    return 0

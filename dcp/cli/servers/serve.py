"""``dcplake serve``: the embedded producer as a process of its own."""

from collections.abc import Mapping
from typing import Any

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount, password_from
from dcp.cli.terminal.logs import log_end
from dcp.server.model.cluster_settings import ServeSettings


@takes_settings(ServeSettings)
def run(*, settings: Mapping[str, Any], account: ProducerAccount) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve

    users = {account.username: password_from(account.password_env)}
    serve(ServeSettings(users=users, **settings))
    log_end("dcplake serve", "stopped", 0, as_json=False)
    return 0

"""``dcplake serve``: the embedded producer as a process of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.terminal.logs import log_end
from dcp.errors import ConfigError
from dcp.server.model.cluster_settings import ClusterSettings

_PORT: Final = 11210
_HTTP_PORT: Final = 8091
_TLS_PORT: Final = 11207
_HTTPS_PORT: Final = 18091


@dataclass(frozen=True, slots=True)
class PortOptions:
    """These options say on which ports the nodes listen, and with which certificate."""

    port: Annotated[
        int,
        Option(min=0, help="the first node's port, the others follow; 0 takes free ones"),
    ] = _PORT
    http_port: Annotated[
        int | None,
        Option(
            min=0,
            help=f"the same for HTTP ({_HTTP_PORT}; free ones where --port is another than "
            f"{_PORT})",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        Option(metavar="FILE", help="PEM certificate of the nodes: listen with TLS too"),
    ] = None
    tls_key: Annotated[
        str | None, Option(metavar="FILE", help="PEM private key that belongs to it")
    ] = None
    tls_port: Annotated[
        int | None,
        Option(min=0, help=f"as --http-port, for the encrypted protocol ({_TLS_PORT})"),
    ] = None
    https_port: Annotated[
        int | None,
        Option(min=0, help=f"as --http-port, for HTTPS ({_HTTPS_PORT})"),
    ] = None

    def values(self, nodes: int) -> dict[str, Any]:
        """Return what `ClusterSettings` has for them, by name."""

        def ports(first: int | None, usual: int) -> tuple[int, ...]:
            """Return a port per node. Of several clusters on a machine one has the usual ones."""
            if first is None:
                first = usual if self.port == _PORT else 0
            return tuple(first + node if first else 0 for node in range(nodes))

        tls = source.tls_files(self.tls_cert, self.tls_key, "--tls-cert, --tls-key")
        if tls is None and (self.tls_port is not None or self.https_port is not None):
            raise ConfigError(
                "--tls-port, --https-port: expected --tls-cert and --tls-key with them"
            )
        return {
            "ports": ports(self.port, _PORT),
            "http_ports": ports(self.http_port, _HTTP_PORT),
            "tls": tls,
            "tls_ports": ports(self.tls_port, _TLS_PORT) if tls else (),
            "https_ports": ports(self.https_port, _HTTPS_PORT) if tls else (),
        }


@takes_settings(ClusterSettings)
def run(
    *,
    settings: Mapping[str, Any],
    ports: PortOptions,
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve

    chosen = ClusterSettings(
        users={user: source.password_from(password_env)},
        **ports.values(settings["nodes"]),
        **settings,
    )
    serve(chosen)
    log_end("dcplake serve", "stopped", 0, as_json=False)
    return 0

"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.terminal.logs import log_end
from dcp.errors import ConfigError
from dcp.relay.relay_settings import RelaySettings
from dcp.seeds import DEFAULT_SEED


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    """These options say which cluster the relay receives from, and who signs in."""

    upstream: Annotated[
        str,
        Option(metavar="HOST:PORT,…", help="nodes of the cluster; one that answers is enough"),
    ]
    user: Annotated[str, Option(help="who signs in")] = source.DEFAULT_USER
    password_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help=f"file with the password (without it: the environment's {source.PASSWORD_ENV})",
        ),
    ] = None
    tls: source.Tls = False
    ca_file: source.CaFile = None

    def values(self) -> dict[str, Any]:
        """Return what `RelaySettings` has for them, by name."""
        from dcp.client.addresses import parse_seeds
        from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret

        tls = source.tls_from(is_wanted=self.tls, ca_file=self.ca_file)
        mechanisms = SCRAM_MECHANISMS if tls is None else ALL_MECHANISMS
        return {
            "upstream": parse_seeds(self.upstream.split(","), tls=tls is not None),
            "credentials": Credentials(
                self.user, Secret(_password(self.password_file)), mechanisms
            ),
            "tls": tls,
        }


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """These options say where consumers connect, and who may."""

    listen: Annotated[
        str,
        Option(metavar="HOST:PORT", help="where consumers connect; port 0 takes a free one"),
    ] = DEFAULT_SEED
    listen_user: Annotated[
        str | None,
        Option(help="who may connect (the one who signs in upstream)"),
    ] = None
    listen_password_file: Annotated[
        Path | None, Option(metavar="FILE", help="file with that one's password")
    ] = None
    listen_tls_cert: Annotated[
        str | None, Option(metavar="FILE", help="PEM certificate: listen with TLS too")
    ] = None
    listen_tls_key: Annotated[str | None, Option(metavar="FILE", help="PEM private key of it")] = (
        None
    )

    def values(self) -> dict[str, Any]:
        """Return what `RelaySettings` has for them, by name."""
        host, port = _listen(self.listen)
        return {
            "host": host,
            "port": port,
            "listen_tls": source.tls_files(
                self.listen_tls_cert, self.listen_tls_key, "--listen-tls-cert, --listen-tls-key"
            ),
            "users": _users(self.listen_user, self.listen_password_file),
        }


@takes_settings(RelaySettings)
def run(
    *,
    cluster: UpstreamOptions,
    consumers: ConsumerOptions,
    fc: Annotated[
        str,
        Option(
            metavar="SPEC",
            help="whom the cluster waits for: max (the fastest consumer), min (the slowest), or "
            "tagged,g:TAG/SIZE (the slowest of a group); t:5s: how long for one that is stuck",
        ),
    ] = "max",
    settings: Mapping[str, Any],
) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.protocol.flow_spec import parse_flow_spec
    from dcp.relay.process import run_relay

    chosen = RelaySettings(
        flow_spec=parse_flow_spec(fc), **cluster.values(), **consumers.values(), **settings
    )
    run_relay(chosen)
    log_end("dcplake relay", "stopped", 0, as_json=False)
    return 0


def _password(file: Path | None) -> str:
    if file is None:
        found = os.environ.get(source.PASSWORD_ENV)
        if found is None:
            raise ConfigError(
                f"--password-file: found none, and no {source.PASSWORD_ENV} in the environment, "
                "expected one of them"
            )
        return found
    try:
        found = file.expanduser().read_text(encoding="utf-8").split("\n", 1)[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"password file {file}: {error}") from None
    if not found:
        raise ConfigError(
            f"password file {file}: found its first line empty, expected the password in it"
        )
    return found


def _users(user: str | None, file: Path | None) -> dict[str, str]:
    if (user is None) != (file is None):
        raise ConfigError(
            "--listen-user, --listen-password-file: found one of them, expected both or none"
        )
    return {} if user is None else {user: _password(file)}


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > 65535:
        raise ConfigError(
            f"--listen: found {text!r}, expected HOST:PORT, for example 0.0.0.0:11210"
        )
    return host, int(port)

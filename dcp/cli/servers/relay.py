"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import os
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.options.values import byte_count_option, seconds_option
from dcp.cli.terminal.logs import log_end
from dcp.errors import ConfigError

_MIB: Final = 1024 * 1024


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    upstream: Annotated[
        str,
        Option(metavar="HOST:PORT,…", help="nodes of the cluster; one that answers is enough"),
    ],
    bucket: Annotated[str, Option(help="the bucket")] = source.DEFAULT_BUCKET,
    user: Annotated[str, Option(help="who signs in")] = source.DEFAULT_USER,
    password_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help=f"file with the password (without it: the environment's {source.PASSWORD_ENV})",
        ),
    ] = None,
    tls: source.Tls = False,
    ca_file: source.CaFile = None,
    listen: Annotated[
        str,
        Option(metavar="HOST:PORT", help="where consumers connect; port 0 takes a free one"),
    ] = "127.0.0.1:11210",
    http_port: Annotated[int, Option(min=0, help="the same for HTTP; 0 takes a free one")] = 0,
    listen_user: Annotated[
        str | None,
        Option(help="who may connect (the one who signs in upstream)"),
    ] = None,
    listen_password_file: Annotated[
        Path | None, Option(metavar="FILE", help="file with that one's password")
    ] = None,
    listen_tls_cert: Annotated[
        str | None, Option(metavar="FILE", help="PEM certificate: listen with TLS too")
    ] = None,
    listen_tls_key: Annotated[
        str | None, Option(metavar="FILE", help="PEM private key of it")
    ] = None,
    listen_tls_port: Annotated[
        int, Option(min=0, help="the port for that; 0 takes a free one")
    ] = 0,
    data: Annotated[
        Path,
        Option(metavar="FOLDER", help="where the relay keeps what it received, over restarts too"),
    ],
    fc: Annotated[
        str,
        Option(
            metavar="SPEC",
            help="whom the cluster waits for: max (the fastest consumer), min (the slowest), or "
            "tagged,g:TAG/SIZE (the slowest of a group); t:5s: how long for one that is stuck",
        ),
    ] = "max",
    hold: Annotated[
        float,
        seconds_option(
            "how long a group may be smaller than its SIZE before its streams are closed"
        ),
    ] = 0.0,
    consumer_ack_seconds: Annotated[
        float,
        seconds_option(
            "how late consumers acknowledge what they have done with; who stands still for "
            "so long, and for t: beyond, is stuck (kv_engine's and dcplake's consumers take 5)"
        ),
    ] = 5.0,
    window_bytes: Annotated[
        int,
        byte_count_option(
            "flow-control window of each connection to a node of the cluster; more than four "
            "share four such windows, of 1 MiB at least"
        ),
    ] = 10 * _MIB,
    memory_quota: Annotated[
        int,
        byte_count_option("what the newest items may take in memory; older ones come from disk"),
    ] = 256 * _MIB,
) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.client.addresses import parse_seeds
    from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
    from dcp.protocol.flow_spec import parse_flow_spec
    from dcp.relay.process import run_relay
    from dcp.relay.relay_settings import RelaySettings

    if memory_quota < 1:
        raise ConfigError("--memory-quota: found 0 bytes, expected 1 or more")
    encryption = source.tls_from(is_wanted=tls, ca_file=ca_file)
    host, port = _listen(listen)
    mechanisms = SCRAM_MECHANISMS if encryption is None else ALL_MECHANISMS
    settings = RelaySettings(
        upstream=parse_seeds(upstream.split(","), tls=encryption is not None),
        bucket=bucket,
        credentials=Credentials(user, Secret(_password(password_file)), mechanisms),
        data_folder=data,
        tls=encryption,
        flow_spec=parse_flow_spec(fc),
        window_bytes=window_bytes,
        hold_seconds=hold,
        consumer_ack_seconds=consumer_ack_seconds,
        host=host,
        port=port,
        http_port=http_port,
        listen_tls=source.tls_files(
            listen_tls_cert, listen_tls_key, "--listen-tls-cert, --listen-tls-key"
        ),
        tls_port=listen_tls_port,
        users=_users(listen_user, listen_password_file),
        checkpoint_quota_bytes=memory_quota,
    )
    run_relay(settings)
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
        found = file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"password file {file}: {error}") from None
    if not found:
        raise ConfigError(f"password file {file}: found it empty, expected the password in it")
    return found


def _users(user: str | None, file: Path | None) -> dict[str, str]:
    if (user is None) != (file is None):
        raise ConfigError(
            "--listen-user, --listen-password-file: found one of them, expected both or none"
        )
    return {} if user is None else {user: _password(file)}


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > 65535:
        raise ConfigError(
            f"--listen: found {text!r}, expected HOST:PORT, for example 0.0.0.0:11210"
        )
    return host.strip("[]"), int(port)

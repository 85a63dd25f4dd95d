"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dcp.cli.numbers import byte_count, seconds, whole_number
from dcp.cli.source_options import add_tls_options, tls_from
from dcp.errors import ConfigError

if TYPE_CHECKING:
    from dcp.producer.model.settings import TlsFiles

_MIB: Final = 1024 * 1024
_PORT: Final = 11210
_PASSWORD_ENV: Final = "DCPLAKE_PASSWORD"  # noqa: S105  (the name of a variable)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--upstream",
        required=True,
        metavar="HOST:PORT,…",
        help="nodes of the cluster; one that answers is enough",
    )
    parser.add_argument("--bucket", default="default", help="the bucket (default)")
    parser.add_argument("--user", default="Administrator", help="who signs in (Administrator)")
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"file with the password (without it: the environment's {_PASSWORD_ENV})",
    )
    add_tls_options(parser, "the cluster's nodes")
    parser.add_argument(
        "--listen",
        default=f"127.0.0.1:{_PORT}",
        metavar="HOST:PORT",
        help=f"where consumers connect (127.0.0.1:{_PORT}); port 0 takes a free one",
    )
    parser.add_argument(
        "--http-port", type=whole_number, default=0, help="the same for HTTP (a free one)"
    )
    parser.add_argument("--listen-user", help="who may connect (the one who signs in upstream)")
    parser.add_argument(
        "--listen-password-file", type=Path, metavar="FILE", help="file with that one's password"
    )
    parser.add_argument(
        "--listen-tls-cert", metavar="FILE", help="PEM certificate: listen with TLS too"
    )
    parser.add_argument("--listen-tls-key", metavar="FILE", help="PEM private key of it")
    parser.add_argument(
        "--listen-tls-port", type=whole_number, default=0, help="the port for that (a free one)"
    )
    parser.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="where the relay keeps what it received, over restarts too",
    )
    parser.add_argument(
        "--fc",
        default="max",
        metavar="SPEC",
        help="whom the cluster waits for: max (the fastest consumer), min (the slowest), or "
        "tagged,g:TAG/SIZE (the slowest of a group); t:5s: how long for one that is stuck (max)",
    )
    parser.add_argument(
        "--hold",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long a group may be smaller than its SIZE before its streams are closed (0)",
    )
    parser.add_argument(
        "--consumer-ack-seconds",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="how late consumers acknowledge what they have done with; who stands still for so "
        "long, and for t: beyond, is stuck (5, as kv_engine's and dcplake's consumers do)",
    )
    parser.add_argument(
        "--window-bytes",
        type=byte_count,
        default=10 * _MIB,
        metavar="BYTES",
        help="flow-control window of each connection to a node of the cluster; more than four "
        "share four such windows, of 1 MiB at least (10 MiB)",
    )
    parser.add_argument(
        "--memory-quota",
        type=byte_count,
        default=256 * _MIB,
        metavar="BYTES",
        help="what the newest items may take in memory; older ones come from disk (256 MiB)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.client.addresses import parse_seeds
    from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
    from dcp.protocol.flow_spec import parse_flow_spec
    from dcp.relay.process import run_relay
    from dcp.relay.settings import RelaySettings

    if arguments.memory_quota < 1:
        raise ConfigError("--memory-quota: found 0 bytes, expected 1 or more")
    tls = tls_from(arguments)
    host, port = _listen(arguments.listen)
    mechanisms = SCRAM_MECHANISMS if tls is None else ALL_MECHANISMS
    settings = RelaySettings(
        upstream=parse_seeds(arguments.upstream.split(","), tls=tls is not None),
        bucket=arguments.bucket,
        credentials=Credentials(
            arguments.user, Secret(_password(arguments.password_file)), mechanisms
        ),
        data_folder=arguments.data,
        tls=tls,
        flow_spec=parse_flow_spec(arguments.fc),
        window_bytes=arguments.window_bytes,
        hold_seconds=arguments.hold,
        consumer_ack_seconds=arguments.consumer_ack_seconds,
        host=host,
        port=port,
        http_port=arguments.http_port,
        listen_tls=_listen_tls(arguments),
        tls_port=arguments.listen_tls_port,
        users=_users(arguments),
        checkpoint_quota_bytes=arguments.memory_quota,
    )
    run_relay(settings)
    return 0


def _password(file: Path | None) -> str:
    if file is None:
        found = os.environ.get(_PASSWORD_ENV)
        if found is None:
            raise ConfigError(
                f"--password-file: found none, and no {_PASSWORD_ENV} in the environment, "
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


def _users(arguments: argparse.Namespace) -> dict[str, str]:
    user, file = arguments.listen_user, arguments.listen_password_file
    if (user is None) != (file is None):
        raise ConfigError(
            "--listen-user, --listen-password-file: found one of them, expected both or none"
        )
    return {} if user is None else {user: _password(file)}


def _listen_tls(arguments: argparse.Namespace) -> "TlsFiles | None":
    from dcp.producer.model.settings import TlsFiles

    certificate, key = arguments.listen_tls_cert, arguments.listen_tls_key
    if (certificate is None) != (key is None):
        raise ConfigError(
            "--listen-tls-cert, --listen-tls-key: found one of them, expected both or none"
        )
    return None if certificate is None else TlsFiles(certificate, key)


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > 65535:
        raise ConfigError(
            f"--listen: found {text!r}, expected HOST:PORT, for example 0.0.0.0:11210"
        )
    return host.strip("[]"), int(port)

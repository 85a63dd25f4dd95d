"""``dcplake serve``: the embedded producer as a process of its own."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dcp.cli.numbers import byte_count, seconds, whole_number
from dcp.cli.source_options import add_account_options, password_from
from dcp.errors import ConfigError

if TYPE_CHECKING:
    from dcp.producer.model.settings import TlsFiles

_PORT: Final = 11210
_HTTP_PORT: Final = 8091
_TLS_PORT: Final = 11207
_HTTPS_PORT: Final = 18091


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--nodes", type=whole_number, default=1, help="data nodes (1)")
    parser.add_argument(
        "--vbuckets", type=whole_number, default=64, help="vbuckets of the bucket (64)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port",
        type=whole_number,
        default=_PORT,
        help=f"the first node's port, the others follow ({_PORT}); 0 takes free ones",
    )
    parser.add_argument(
        "--http-port",
        type=whole_number,
        help=f"the same for HTTP ({_HTTP_PORT}; free ones where --port is another than {_PORT})",
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="PEM certificate of the nodes: listen with TLS too"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="PEM private key that belongs to it")
    parser.add_argument(
        "--tls-port",
        type=whole_number,
        help=f"as --http-port, for the encrypted protocol ({_TLS_PORT})",
    )
    parser.add_argument(
        "--https-port", type=whole_number, help=f"as --http-port, for HTTPS ({_HTTPS_PORT})"
    )
    parser.add_argument(
        "--replicas",
        type=whole_number,
        default=0,
        metavar="N",
        help="copies of each vbucket on other nodes, fed over the protocol (0)",
    )
    parser.add_argument(
        "--replica-lag",
        type=whole_number,
        default=0,
        metavar="SEQNOS",
        help="without --replicas: how many of a vbucket's newest seqnos a failover loses (0)",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        type=Path,
        help="keep the bucket's data there over a restart (without it, in memory only)",
    )
    parser.add_argument(
        "--bucket-type",
        choices=("couchbase", "ephemeral"),
        default="couchbase",
        help="an ephemeral bucket has no disk, and a crash loses all of it (couchbase)",
    )
    parser.add_argument(
        "--memory-quota",
        type=byte_count,
        default=0,
        metavar="BYTES",
        help="what documents may take whose values are in memory and on disk (0: no limit)",
    )
    parser.add_argument(
        "--rules",
        choices=("document", "server"),
        default="document",
        help="whose rules of rollback and flow control: the published documents' or kv_engine's "
        "code's (document)",
    )
    parser.add_argument(
        "--prepare-extra-bytes",
        type=byte_count,
        default=0,
        metavar="BYTES",
        help="what flow control charges for a prepare beyond its length (0; kv_engine charges 2)",
    )
    parser.add_argument(
        "--stuck-name-regex",
        default="",
        metavar="REGEX",
        help="close consumers that acknowledge nothing of a full window, of these whole names as "
        "`dcp` statistics tell them: 'eq_dcpq:reader.*' (none)",
    )
    parser.add_argument(
        "--stuck-timeout",
        type=seconds,
        default=720.0,
        metavar="SECONDS",
        help="for how long they may (720)",
    )
    add_account_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.model.bucket_type import BucketType
    from dcp.producer.model.settings import MAX_NODES, ClusterSettings
    from dcp.producer.server.serve import serve

    if not 1 <= arguments.nodes <= MAX_NODES:
        raise ConfigError(f"--nodes: found {arguments.nodes}, expected 1 to {MAX_NODES}")
    tls = _tls_files(arguments)
    settings = ClusterSettings(
        nodes=arguments.nodes,
        vbuckets=arguments.vbuckets,
        bucket=arguments.bucket,
        bucket_type=BucketType(arguments.bucket_type),
        users={arguments.user: password_from(arguments)},
        host=arguments.host,
        ports=_ports(arguments, "port", _PORT),
        http_ports=_ports(arguments, "http_port", _HTTP_PORT),
        tls=tls,
        tls_ports=_ports(arguments, "tls_port", _TLS_PORT) if tls else (),
        https_ports=_ports(arguments, "https_port", _HTTPS_PORT) if tls else (),
        replicas=arguments.replicas,
        memory_quota_bytes=arguments.memory_quota,
        replica_lag_seqnos=arguments.replica_lag,
        rules=arguments.rules,
        prepare_extra_bytes=arguments.prepare_extra_bytes,
        stuck_name_regex=arguments.stuck_name_regex,
        stuck_timeout_seconds=arguments.stuck_timeout,
        data_folder=arguments.data,
    )
    serve(settings)
    return 0


def _tls_files(arguments: argparse.Namespace) -> "TlsFiles | None":
    from dcp.producer.model.settings import TlsFiles

    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise ConfigError("--tls-cert, --tls-key: found one of them, expected both or none")
    if arguments.tls_cert:
        return TlsFiles(arguments.tls_cert, arguments.tls_key)
    if arguments.tls_port is not None or arguments.https_port is not None:
        raise ConfigError("--tls-port, --https-port: expected --tls-cert and --tls-key with them")
    return None


def _ports(arguments: argparse.Namespace, option: str, usual: int) -> tuple[int, ...]:
    """Return a port per node. Of several clusters on a machine only one has the usual ones."""
    first = getattr(arguments, option)
    if first is None:
        first = usual if arguments.port == _PORT else 0
    return tuple(first + node if first else 0 for node in range(arguments.nodes))

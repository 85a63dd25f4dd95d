"""``dcplake serve``: the embedded producer as a process of its own."""

from pathlib import Path
from typing import Annotated, Final, Literal

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.options.values import byte_count_option, seconds_option
from dcp.cli.terminal.logs import log_end
from dcp.errors import ConfigError

_PORT: Final = 11210
_HTTP_PORT: Final = 8091
_TLS_PORT: Final = 11207
_HTTPS_PORT: Final = 18091


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    nodes: Annotated[int, Option(min=0, help="data nodes")] = 1,
    vbuckets: Annotated[int, Option(min=0, help="vbuckets of the bucket")] = 64,
    host: Annotated[str, Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int,
        Option(min=0, help="the first node's port, the others follow; 0 takes free ones"),
    ] = _PORT,
    http_port: Annotated[
        int | None,
        Option(
            min=0,
            help=f"the same for HTTP ({_HTTP_PORT}; free ones where --port is another than "
            f"{_PORT})",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        Option(metavar="FILE", help="PEM certificate of the nodes: listen with TLS too"),
    ] = None,
    tls_key: Annotated[
        str | None, Option(metavar="FILE", help="PEM private key that belongs to it")
    ] = None,
    tls_port: Annotated[
        int | None,
        Option(min=0, help=f"as --http-port, for the encrypted protocol ({_TLS_PORT})"),
    ] = None,
    https_port: Annotated[
        int | None,
        Option(min=0, help=f"as --http-port, for HTTPS ({_HTTPS_PORT})"),
    ] = None,
    replicas: Annotated[
        int,
        Option(
            min=0,
            help="copies of each vbucket on other nodes, fed over the protocol; a failover needs 1",
        ),
    ] = 0,
    data: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="keep the bucket's data there over a restart (without it, in memory only)",
        ),
    ] = None,
    bucket_type: Annotated[
        Literal["couchbase", "ephemeral"],
        Option(help="an ephemeral bucket has no disk, and a crash loses all of it"),
    ] = "couchbase",
    history_retention: Annotated[
        int,
        byte_count_option(
            "how much of what was replaced the disk keeps, as a Magma bucket with change history; "
            "0: none"
        ),
    ] = 0,
    rules: Annotated[
        Literal["document", "server"],
        Option(
            help="whose rules of rollback, flow control and streams without values: the published "
            "documents' or kv_engine's code's"
        ),
    ] = "document",
    prepare_extra_bytes: Annotated[
        int,
        byte_count_option(
            "what flow control charges for a prepare beyond its length (kv_engine charges 2)"
        ),
    ] = 0,
    stuck_name_regex: Annotated[
        str,
        Option(
            metavar="REGEX",
            help="close consumers that acknowledge nothing of a full window, of these whole names "
            "as `dcp` statistics tell them: 'eq_dcpq:reader.*' (none)",
        ),
    ] = "",
    stuck_timeout: Annotated[float, seconds_option("for how long they may")] = 720.0,
    bucket: source.Bucket = source.DEFAULT_BUCKET,
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve
    from dcp.server.model.bucket_type import BucketType
    from dcp.server.model.cluster_settings import MAX_NODES, ClusterSettings

    if not 1 <= nodes <= MAX_NODES:
        raise ConfigError(f"--nodes: found {nodes}, expected 1 to {MAX_NODES}")

    def ports(first: int | None, usual: int) -> tuple[int, ...]:
        """Return a port per node. Of several clusters on a machine one has the usual ones."""
        if first is None:
            first = usual if port == _PORT else 0
        return tuple(first + node if first else 0 for node in range(nodes))

    tls = source.tls_files(tls_cert, tls_key, "--tls-cert, --tls-key")
    if tls is None and (tls_port is not None or https_port is not None):
        raise ConfigError("--tls-port, --https-port: expected --tls-cert and --tls-key with them")
    settings = ClusterSettings(
        nodes=nodes,
        vbuckets=vbuckets,
        bucket=bucket,
        bucket_type=BucketType(bucket_type),
        users={user: source.password_from(password_env)},
        host=host,
        ports=ports(port, _PORT),
        http_ports=ports(http_port, _HTTP_PORT),
        tls=tls,
        tls_ports=ports(tls_port, _TLS_PORT) if tls else (),
        https_ports=ports(https_port, _HTTPS_PORT) if tls else (),
        replicas=replicas,
        history_retention_bytes=history_retention,
        rules=rules,
        prepare_extra_bytes=prepare_extra_bytes,
        stuck_name_regex=stuck_name_regex,
        stuck_timeout_seconds=stuck_timeout,
        data_folder=data,
    )
    serve(settings)
    log_end("dcplake serve", "stopped", 0, as_json=False)
    return 0

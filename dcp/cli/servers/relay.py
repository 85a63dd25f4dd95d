"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Option

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.terminal.logs import log_end
from dcp.client.settings import AccessSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
from dcp.relay.settings import RelaySettings
from dcp.tls_settings import TlsSettings

_ACCESS: Final = AccessSettings()


@takes_settings
def run(
    *,
    settings: Annotated[Mapping[str, Any], RelaySettings],
    user: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"who signs in at the cluster; without it: {_ACCESS.username}, or whom "
            "--cert-file names if no --password-file is given",
        ),
    ] = None,
    password_file: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="file with the password; without it: the environment's " + _ACCESS.password_env,
        ),
    ] = None,
    listen_user: Annotated[
        str | None,
        Option(metavar="NAME", help="who may connect; without it: the one who signs in upstream"),
    ] = None,
    listen_password_file: Annotated[
        str | None, Option(metavar="FILE", help="file with that one's password")
    ] = None,
) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.relay.process import run_relay

    if (listen_user is None) != (listen_password_file is None):
        raise ConfigError(
            "--listen-user, --listen-password-file: found one of them, expected both or none"
        )
    users = {}
    if listen_user is not None:
        users[listen_user] = _password(listen_password_file, "--listen-password-file")
    credentials = _credentials(user, password_file, settings["tls"])
    run_relay(RelaySettings(**settings, credentials=credentials, users=users))
    log_end("dcplake relay", "stopped", 0, as_json=False)
    return 0


def _credentials(
    user: str | None, password_file: str | None, tls: TlsSettings | None
) -> Credentials:
    """Return who signs in at the cluster; PLAIN needs a private line to it."""
    if tls is not None and tls.cert_file and user is None and password_file is None:
        return Credentials.of_certificate()
    mechanisms = SCRAM_MECHANISMS if tls is None else ALL_MECHANISMS
    password = Secret(_password(password_file, "--password-file"))
    return Credentials(user or _ACCESS.username, password, mechanisms)


def _password(file: str | None, option: str) -> str:
    if file is None:
        found = os.environ.get(_ACCESS.password_env)
        if not found:
            state = "no" if found is None else "nothing in"
            raise ConfigError(
                f"--password-file: found none, and {state} {_ACCESS.password_env} in the "
                "environment, expected one of them"
            )
        return found
    from dcp.lake.config.secret_files import read_secret

    found = read_secret(Path(file), option)
    if not found:
        raise ConfigError(f"{option}: found its file's first line empty, expected the password")
    return found

"""Options of the commands that only need a bucket, not a lake: where it is and who signs in."""

import argparse
import os
from typing import TYPE_CHECKING, Final

from dcp.cli.numbers import name
from dcp.errors import ConfigError

if TYPE_CHECKING:
    from dcp.client.settings import TlsSettings

DEFAULT_PASSWORD: Final = "password"  # noqa: S105  (the embedded producer's, for this machine only)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the address, bucket and user."""
    parser.add_argument(
        "--seeds", default="127.0.0.1:11210", help="nodes as host:port,… (127.0.0.1:11210)"
    )
    add_account_options(parser)


def add_account_options(parser: argparse.ArgumentParser) -> None:
    """Add the bucket, user and the name of the variable with the password."""
    parser.add_argument("--bucket", type=name, default="default", help="the bucket (default)")
    parser.add_argument(
        "--user", type=name, default="Administrator", help="the user (Administrator)"
    )
    parser.add_argument(
        "--password-env",
        default="DCPLAKE_PASSWORD",
        metavar="NAME",
        help="environment variable with the password (DCPLAKE_PASSWORD; 'password' if not set)",
    )


def add_tls_options(parser: argparse.ArgumentParser, whom: str) -> None:
    """Add what says whether ``whom``, the cluster for example, is spoken to encrypted."""
    parser.add_argument(
        "--tls", action="store_true", help=f"speak to {whom} encrypted, as the system trusts"
    )
    parser.add_argument(
        "--ca-file", metavar="FILE", help=f"PEM file of who is trusted to name {whom}"
    )


def tls_from(arguments: argparse.Namespace) -> "TlsSettings | None":
    """Return how to speak encrypted; None where that is not asked for."""
    from dcp.client.settings import TlsSettings

    is_wanted = arguments.tls or arguments.ca_file is not None
    return TlsSettings(arguments.ca_file) if is_wanted else None


def password_from(arguments: argparse.Namespace) -> str:
    """Return the password that the environment holds, or the embedded producer's default.

    Raises:
        ConfigError: the variable is set and empty.

    """
    password = os.environ.get(arguments.password_env, DEFAULT_PASSWORD)
    if not password:
        raise ConfigError(
            f"environment variable {arguments.password_env}: found nothing in it, expected the "
            "password"
        )
    return password

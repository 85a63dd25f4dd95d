"""Options of the commands that only need a bucket, not a lake: where it is and who signs in."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.options.values import name
from dcp.errors import ConfigError
from dcp.lake.config.settings import SourceSettings
from dcp.setting_keys import Section, key_of

if TYPE_CHECKING:
    from dcp.producer.admin_client import AdminClient
    from dcp.tls_settings import TlsSettings

DEFAULT_PASSWORD: Final = "password"  # noqa: S105  (the embedded producer's, for this machine only)
PASSWORD_ENV: Final = "DCPLAKE_PASSWORD"  # noqa: S105  (the name of a variable)

Seeds = Annotated[str, Option("--seeds", metavar="HOST:PORT,…", help="nodes of the cluster")]
Bucket = Annotated[str, Option("--bucket", parser=name, metavar="NAME", help="the bucket")]
User = Annotated[str, Option("--user", parser=name, metavar="NAME", help="who signs in")]
PasswordEnv = Annotated[
    str,
    Option(
        "--password-env",
        metavar="NAME",
        help="environment variable with the password ('password' if not set)",
    ),
]
Tls = Annotated[bool, Option("--tls", help="use TLS, with the system's certificate authorities")]
CaFile = Annotated[
    str | None,
    Option("--ca-file", metavar="FILE", help="PEM file of certificate authorities; implies --tls"),
]

DEFAULT_USER: Final = "Administrator"


@dataclass(frozen=True, slots=True)
class ProducerAccount(Section):
    """The user of the embedded producer, and where the password is."""

    username: str = key_of(
        SourceSettings,
        "username",
        default=DEFAULT_USER,
        text="Who signs in.",
        option="--user NAME",
    )
    password_env: str = key_of(
        SourceSettings,
        "password_env",
        text="Environment variable with the password ('password' if not set).",
        option="--password-env NAME",
    )


def tls_from(*, is_wanted: bool, ca_file: str | None) -> "TlsSettings | None":
    """Return how to speak encrypted; None where that is not asked for."""
    from dcp.tls_settings import TlsSettings

    return TlsSettings(ca_file or "") if is_wanted or ca_file is not None else None


def password_from(variable: str) -> str:
    """Return the password that the environment holds, or the embedded producer's default.

    Raises:
        ConfigError: the variable is set and empty.

    """
    password = os.environ.get(variable, DEFAULT_PASSWORD)
    if not password:
        raise ConfigError(
            f"environment variable {variable}: found nothing in it, expected the password"
        )
    return password


def admin_client(seeds: str, user: str, password_env: str, bucket: str) -> "AdminClient":
    """Return a client that orders a producer what a cluster's administrator would.

    Raises:
        ConfigError: see ``password_from``.

    """
    from dcp.producer.admin_client import AdminClient

    return AdminClient(seeds.split(","), user, password_from(password_env), bucket)

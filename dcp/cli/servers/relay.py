"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.terminal.logs import log_end
from dcp.client.settings import AccessSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
from dcp.relay.settings import RelaySettings
from dcp.setting_keys import Section, key_of
from dcp.tls_settings import TlsSettings

_ACCESS: Final = AccessSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayAccounts(Section):
    """Users and passwords: of the relay at its cluster, and of its consumers."""

    subject: ClassVar[str] = "relay "

    # An empty name tells a user who is not given from the default one.
    username: str = key_of(
        AccessSettings,
        "username",
        default="",
        text=f"Who signs in at the cluster; without it: {_ACCESS.username}, or whom --cert-file "
        "names if no --password-file is given.",
        option="--user NAME",
    )
    password_file: str = key_of(
        AccessSettings,
        "password_file",
        text=f"File with the password; without it: the environment's {_ACCESS.password_env}.",
        option="--password-file FILE",
    )
    # By default there is no user but the cluster's.
    listen_user: str = key_of(
        AccessSettings,
        "username",
        default="",
        text="Who may connect; without it: the one who signs in upstream.",
        option="--listen-user NAME",
    )
    listen_password_file: str = key_of(
        AccessSettings,
        "password_file",
        text="File with that one's password.",
        option="--listen-password-file FILE",
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if bool(self.listen_user) != bool(self.listen_password_file):
            raise ConfigError(
                f"{self.named('listen_user', 'listen_password_file')}: found one of them, expected "
                "both or none"
            )

    def credentials(self, tls: TlsSettings | None) -> Credentials:
        """Return who signs in at the cluster; PLAIN needs a private line to it.

        Raises:
            ConfigError: there is no password.
            SecretError: its file cannot be read.
        """
        if tls is not None and tls.cert_file and not (self.username or self.password_file):
            return Credentials.of_certificate()
        if self.password_file:
            password = self._read("password_file")
        elif not (password := os.environ.get(_ACCESS.password_env, "")):
            state = "nothing in" if _ACCESS.password_env in os.environ else "no"
            raise ConfigError(
                f"{self.named('password_file')}: found none, and {state} {_ACCESS.password_env} in "
                "the environment, expected one of them"
            )
        mechanisms = SCRAM_MECHANISMS if tls is None else ALL_MECHANISMS
        return Credentials(self.username or _ACCESS.username, Secret(password), mechanisms)

    def users(self) -> dict[str, str]:
        """Return who may connect, with the password; nobody if that is who signs in upstream.

        Raises:
            ConfigError: the file's first line is empty.
            SecretError: the file cannot be read.
        """
        return {self.listen_user: self._read("listen_password_file")} if self.listen_user else {}

    def _read(self, setting: str) -> str:
        from dcp.lake.config.secret_files import read_secret

        named = self.named(setting)
        if found := read_secret(Path(getattr(self, setting)), named):
            return found
        raise ConfigError(f"{named}: found its file's first line empty, expected the password")


@takes_settings
def run(
    *,
    settings: Annotated[Mapping[str, Any], RelaySettings],
    accounts: RelayAccounts,
) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.relay.process import run_relay

    users = accounts.users()
    credentials = accounts.credentials(settings["tls"])
    run_relay(RelaySettings(**settings, credentials=credentials, users=users))
    log_end("dcplake relay", "stopped", 0, as_json=False)
    return 0

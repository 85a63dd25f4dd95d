"""``dcplake relay``: a replica server between a cluster and any number of consumers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount
from dcp.cli.terminal.logs import log_end
from dcp.client.settings import AccessSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret
from dcp.relay.relay_settings import RelaySettings
from dcp.setting_keys import Section, key_of

_PASSWORD_ENV: Final = AccessSettings().password_env


@dataclass(frozen=True, slots=True)
class RelayAccounts(Section):
    """The user at the cluster, and that of the relay, with the files of their passwords."""

    username: str = key_of(ProducerAccount, "username", text="Who signs in at the cluster.")
    password_file: str = key_of(
        AccessSettings,
        "password_file",
        text=f"File with the password; without it: the environment's {_PASSWORD_ENV}.",
        option="--password-file FILE",
    )
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
                "--listen-user, --listen-password-file: found one of them, expected both or none"
            )

    def values(self, *, is_private: bool) -> dict[str, Any]:
        """Return what `RelaySettings` has for them; PLAIN needs a private line to the cluster."""
        mechanisms = ALL_MECHANISMS if is_private else SCRAM_MECHANISMS
        password = Secret(_password(self.password_file, "--password-file"))
        users = {}
        if file := self.listen_password_file:
            users[self.listen_user] = _password(file, "--listen-password-file")
        return {
            "credentials": Credentials(self.username, password, mechanisms),
            "users": users,
        }


@takes_settings
def run(*, settings: Annotated[Mapping[str, Any], RelaySettings], accounts: RelayAccounts) -> int:
    """Relay until SIGTERM or SIGINT."""
    from dcp.relay.process import run_relay

    chosen = RelaySettings(**settings, **accounts.values(is_private=settings["tls"] is not None))
    run_relay(chosen)
    log_end("dcplake relay", "stopped", 0, as_json=False)
    return 0


def _password(file: str, option: str) -> str:
    if not file:
        found = os.environ.get(_PASSWORD_ENV)
        if found is None:
            raise ConfigError(
                f"--password-file: found none, and no {_PASSWORD_ENV} in the environment, "
                "expected one of them"
            )
        return found
    from dcp.lake.config.secret_files import read_secret

    found = read_secret(Path(file), option)
    if not found:
        raise ConfigError(f"{option}: found its file's first line empty, expected the password")
    return found

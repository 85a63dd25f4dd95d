"""Options of the commands that only need a bucket, not a lake: where it is and who signs in."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dcp.client.settings import AccessSettings
from dcp.errors import ConfigError
from dcp.seeds import DEFAULT_SEED
from dcp.setting_keys import Section, key_of, texts_of

if TYPE_CHECKING:
    from dcp.client.kv.admin_client import AdminClient

_DEFAULT_PASSWORD: Final = "password"  # noqa: S105  (the embedded producer's, for this machine only)


@dataclass(frozen=True, slots=True)
class ProducerAccount(Section):
    """The user of the embedded producer, and where the password is."""

    username: str = key_of(AccessSettings, "username", option="--user NAME")
    password_env: str = key_of(
        AccessSettings,
        "password_env",
        text="Environment variable with the password ('password' if not set).",
        option="--password-env NAME",
    )

    def password(self) -> str:
        """Return the password that the environment holds, or the embedded producer's default.

        Raises:
            ConfigError: the variable is set and empty.

        """
        password = os.environ.get(self.password_env, _DEFAULT_PASSWORD)
        if not password:
            raise ConfigError(
                f"environment variable {self.password_env}: found nothing in it, expected the "
                "password"
            )
        return password


@dataclass(frozen=True, slots=True)
class ProducerAccess(ProducerAccount):
    """The way to a bucket of the embedded producer."""

    seeds: tuple[str, ...] = key_of(
        AccessSettings,
        "seeds",
        default=DEFAULT_SEED,
        option="--seeds HOST:PORT,…",
        parse=texts_of,
    )
    bucket: str = key_of(AccessSettings, "bucket", option="--bucket NAME")

    def admin_client(self) -> "AdminClient":
        """Return a client that orders a producer what a cluster's administrator would.

        Raises:
            ConfigError: see ``password``.

        """
        from dcp.client.kv.admin_client import AdminClient

        return AdminClient(self.seeds, self.username, self.password(), self.bucket)

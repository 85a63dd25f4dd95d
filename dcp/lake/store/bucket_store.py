"""Opens object stores by obstore, each once in a process."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from dcp.errors import SecretError
from dcp.lake.config.storage_options import KEYS, with_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_OF_CLIENT: Final = ("allow_http", "connect_timeout", "timeout")
"""Options of the HTTP client, which obstore takes apart from those of the store."""

_CONDITIONS: Final = {"conditional_put": "etag", "copy_if_not_exists": "multipart"}
"""Without them variables such as AWS_CONDITIONAL_PUT decide, for delta-rs, too."""

_MOST_OPEN: Final = 64
"""Keeps so many stores open, with their connections; a lake has one."""

_KEYS_LAST: Final = timedelta(seconds=30)
"""Older keys of files and profiles are read again."""


class _Bucket:
    """A bucket of this process, which tells obstore its keys; obstore asks again for old ones."""

    refresh_threshold = timedelta(0)

    def __init__(self, url: str, way: Mapping[str, str]) -> None:
        self._url = url
        self._way = way
        self._last: dict[str, str] = {}
        self._fixed = _CONDITIONS if url.startswith("s3://") else {}

    def options(self) -> dict[str, str]:
        # A file that is replaced may be empty, or gone, for a moment: of options, or of a profile.
        try:
            found = {**self._fixed, **with_secrets(self._url, self._way)}
        except SecretError:
            if not self._last:
                raise
            return dict(self._last)
        if KEYS[0] in found or KEYS[0] not in self._last:
            self._last = found
        return dict(self._last)

    def __call__(self) -> dict[str, Any]:
        found = self.options()
        key, secret, token = (found.get(name) for name in KEYS)
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token,
            "expires_at": datetime.now(UTC) + _KEYS_LAST,
        }

    @cached_property
    def store(self) -> "ObjectStore":
        from obstore import store  # not where all is on this machine

        config = self.options()
        client = {name: config.pop(name) for name in _OF_CLIENT if name in config}
        retry = {
            "max_retries": int(config.pop("max_retries")),
            "retry_timeout": timedelta(seconds=int(config.pop("retry_timeout").removesuffix("s"))),
        }
        has_keys = KEYS[0] in config
        for name in KEYS:
            config.pop(name, None)
        open_store: Any = store.from_url  # its types ask for the options of one kind of store
        opened: ObjectStore = open_store(
            self._url,
            config=config,
            client_options=client,
            retry_config=retry,
            **({"credential_provider": self} if has_keys else {}),
        )
        return opened


def bucket_store(url: str, way: Mapping[str, str]) -> "ObjectStore":
    """Return the store of a bucket's URL.

    Raises:
        SecretError: as of `bucket_options`.
    """
    return _bucket(url, tuple(sorted(way.items()))).store


def bucket_options(url: str, way: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a bucket's URL with its secrets, as they are now.

    While a file of a secret cannot be used they are those of before.

    Raises:
        SecretError: a file of a secret cannot be read, or is empty, and never was of use.
    """
    return _bucket(url, tuple(sorted(way.items()))).options()


@lru_cache(_MOST_OPEN)
def _bucket(url: str, way: tuple[tuple[str, str], ...]) -> _Bucket:
    return _Bucket(url, dict(way))

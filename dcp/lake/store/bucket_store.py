"""Opens object stores with obstore, each once in a process."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from dcp.errors import SecretError
from dcp.lake.config.storage_options import KEYS, with_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_OF_CLIENT: Final = ("allow_http", "connect_timeout", "timeout")
"""Options of the HTTP client. obstore takes them separately from those of the store."""

_CONDITIONS: Final = {"conditional_put": "etag", "copy_if_not_exists": "multipart"}
"""Fixed here, because environment variables such as AWS_CONDITIONAL_PUT could change them.

They hold for delta-rs, too.
"""

_MOST_OPEN: Final = 64
"""The most stores that stay open with their connections; a lake has one."""

_KEYS_LAST: Final = timedelta(seconds=30)
"""Keys from files and profiles are read again after this time."""


class BucketAccess:
    """An object store of this process. obstore calls it for new keys when the last ones expire."""

    # obstore asks for new keys only after the last ones have expired.
    refresh_threshold = timedelta(0)

    def __init__(self, url: str, way: Mapping[str, str]) -> None:
        self.url = url
        self._way = way
        self._last: dict[str, str] = {}
        self._fixed = _CONDITIONS if url.startswith("s3://") else {}

    def options(self) -> dict[str, str]:
        """Return the options with the present secrets.

        Raises:
            SecretError: a secret's file is unreadable or empty, and there are no earlier options.
        """
        # A file that somebody replaces may be empty or missing for a moment, so that the last valid
        # options or keys stay in use.
        try:
            found = {**self._fixed, **with_secrets(self.url, self._way)}
        except SecretError:
            if not self._last:
                raise
            return dict(self._last)
        # Options that lack keys for a moment must not replace those with keys.
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
        """The open store. The first access raises like `options`."""
        from obstore import store  # a lake on this machine does not need it

        config = self.options()
        client = {name: config.pop(name) for name in _OF_CLIENT if name in config}
        retry = {
            "max_retries": int(config.pop("max_retries")),
            "retry_timeout": timedelta(seconds=int(config.pop("retry_timeout").removesuffix("s"))),
        }
        has_keys = KEYS[0] in config
        for name in KEYS:
            config.pop(name, None)
        open_store: Any = store.from_url  # its type hints demand the options of one kind of store
        opened: ObjectStore = open_store(
            self.url,
            config=config,
            client_options=client,
            retry_config=retry,
            **({"credential_provider": self} if has_keys else {}),
        )
        return opened


def bucket_of(url: str, way: Mapping[str, str]) -> BucketAccess:
    """Return the bucket of a URL; ``way`` has its options, and names its secrets."""
    return _bucket(url, tuple(sorted(way.items())))


@lru_cache(_MOST_OPEN)
def _bucket(url: str, way: tuple[tuple[str, str], ...]) -> BucketAccess:
    return BucketAccess(url, dict(way))

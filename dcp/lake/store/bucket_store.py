"""Opens object stores by obstore, each once in a process."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dcp.errors import SecretError
from dcp.lake.config.storage_options import KEYS, with_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_OF_CLIENT: Final = ("allow_http", "connect_timeout", "timeout")
"""Options of the HTTP client, which obstore takes apart from those of the store."""

_MOST_OPEN: Final = 64
"""Keeps so many stores open, with their connections; a lake has one."""

_KEYS_LAST: Final = timedelta(seconds=30)
"""Older keys of files and profiles are read again."""


class _Keys:
    """Tells obstore this machine's keys for S3; obstore asks again when they are old."""

    refresh_threshold = timedelta(0)

    def __init__(self, bucket: str, way: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._way = way
        self._last: dict[str, str] = {}

    def __call__(self) -> dict[str, Any]:
        try:
            found = self._last = with_secrets(self._bucket, self._way)
        except SecretError:  # a file that is replaced may be empty, or gone, for a moment
            if not self._last:
                raise
            found = self._last
        key, secret, token = (found.get(name) for name in KEYS)
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": token,
            "expires_at": datetime.now(UTC) + _KEYS_LAST,
        }


def bucket_store(bucket: str, way: Mapping[str, str]) -> "ObjectStore":
    """Return the store of a bucket's URL.

    Raises:
        SecretError: a file with a secret cannot be read, or is empty.
    """
    return _opened(bucket, tuple(sorted(way.items())))


@lru_cache(_MOST_OPEN)
def _opened(bucket: str, way: tuple[tuple[str, str], ...]) -> "ObjectStore":
    from obstore import store  # not where all is on this machine

    config = with_secrets(bucket, dict(way))
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
        bucket,
        config=config,
        client_options=client,
        retry_config=retry,
        **({"credential_provider": _Keys(bucket, dict(way))} if has_keys else {}),
    )
    return opened

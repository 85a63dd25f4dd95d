"""Splits a lake's root: a folder of this machine, or a location in another store.

A root must be one location for Spark, delta-rs, obstore and this process. A root that they would
resolve differently is refused.
"""

import re
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote

from dcp.errors import ConfigError

S3_SCHEMES: Final = ("s3", "s3a", "s3n")

_WITH_ONE_SLASH: Final = (*S3_SCHEMES, "gs", "az", "abfs", "abfss", "hdfs", "wasbs", "dbfs", "file")
"""Schemes that count without ``//``, too. Before any other, a colon is part of a folder's name."""

_SMALL: Final = "the bucket in lower-case letters, digits"
_OF_S3: Final = f"://BUCKET/path, {_SMALL}, '.' and '-'", r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_OF_AZURE: Final = "://CONTAINER@ACCOUNT.dfs.core.windows.net/path", r"[\w$.-]+@[\w.-]+(:\d+)?"
_BUCKETS: Final = MappingProxyType(
    {
        **dict.fromkeys(S3_SCHEMES, _OF_S3),
        "gs": (f"://BUCKET/path, {_SMALL}, '.', '_' and '-'", r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?"),
        "az": ("://CONTAINER/path, as Azure names it", r"\$?[a-z0-9]([a-z0-9-]*[a-z0-9])?"),
        **dict.fromkeys(("abfs", "abfss"), _OF_AZURE),
    }
)
"""By scheme, the expected part after it, and the pattern of a bucket's name."""


class StoreParts(NamedTuple):
    scheme: str
    """In lower case; empty for a folder of this machine."""
    bucket: str
    path: str
    """Without the first slash, if there is a bucket."""


def parts_of(location: str) -> StoreParts:
    """Split a location, valid or not."""
    scheme, colon, rest = location.partition(":")
    scheme = scheme.lower()
    if not colon or not (rest.startswith("//") or scheme in _WITH_ONE_SLASH):
        return StoreParts("", "", location)
    if not rest.startswith("//"):
        return StoreParts(scheme, "", rest)
    bucket, _, path = rest[2:].partition("/")
    return StoreParts(scheme, bucket, path)


def checked_root(root: str) -> str:
    """Return a lake's root in its one form: a folder's path, or ``scheme://bucket/path``.

    Raises:
        ConfigError: it is no location, or readers would resolve it differently.
    """
    scheme, bucket, path = parts_of(root)
    if control := re.search(r"[\x00-\x1f\x7f]", root):
        raise _wrong(f"the character {control[0]!r}", "a path of printable characters")
    if not scheme:
        return _folder(root)
    if scheme == "file":
        return _folder_of_url(root)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise _wrong(f"{scheme!r} before '://'", "a scheme, as in s3://bucket/path, or a folder")
    if scheme in ("http", "https"):
        raise _wrong(
            f"the scheme {scheme}",
            "a folder, or a bucket as s3://bucket/path; the address of a server is the endpoint in "
            "lake.storage_options",
        )
    if scheme not in _BUCKETS:  # only Spark knows it
        if ":" in bucket.rpartition("@")[0]:
            raise _wrong("a password", f"{scheme}://host/path; Spark has settings for passwords")
        return root
    form, pattern = _BUCKETS[scheme]
    if not re.fullmatch(pattern, bucket, re.ASCII):
        # Who takes it for a URL may have written keys there.
        found = "a name with '@'" if "@" in bucket else repr(bucket)
        raise _wrong(f"{found} in the bucket's location", f"{scheme}{form}")
    path = path.rstrip("/")
    parts = path.split("/") if path else []
    for part in ("", ".", ".."):
        if part in parts:
            raise _wrong(f"{part or '//'!r} in {root!r}", "a path without '//', '.' and '..'")
    return "/".join((f"{scheme}://{bucket}", *parts))


def local_root(root: str) -> Path | None:
    """Return the folder of a lake's root on this machine; None if it is in another store.

    Raises:
        ConfigError: as of `checked_root`.
    """
    location = checked_root(root)
    return Path(location) if parts_of(root).scheme in ("", "file") else None


def is_on_s3(location: str) -> bool:
    return parts_of(location).scheme in S3_SCHEMES


def _folder(path: str) -> str:
    if path.startswith("//"):  # Spark would take its first part for a machine
        path = f"/{path.lstrip('/')}"
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        raise _wrong(f"no home of a user for '~' in {path!r}", "a path") from None


def _folder_of_url(url: str) -> str:
    _, _, path = url.partition(":")
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path if host in ("", "localhost") else ""
    if not path.startswith("/"):
        raise _wrong(f"{url!r}", "file:///folder: the whole path, after three slashes")
    try:
        return _folder(unquote(path, errors="strict"))
    except UnicodeDecodeError:
        raise _wrong(f"{url!r}, which is no UTF-8 after its '%'", "a folder's path") from None


def _wrong(found: str, expected: str) -> ConfigError:
    return ConfigError(f"lake.root: found {found}, expected {expected}")

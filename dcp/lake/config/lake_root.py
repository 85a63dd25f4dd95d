"""Resolves a lake's root: a folder of this machine, or another store."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

S3_SCHEMES: Final = ("s3", "s3a", "s3n")

_REMOTE_SCHEMES: Final = (*S3_SCHEMES, "gs", "az", "abfs", "abfss", "hdfs", "wasbs", "dbfs")


def local_root(root: str) -> Path | None:
    """Return the folder of a lake root on this machine; None if it is in another store."""
    parts = urlsplit(root)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in root or parts.scheme in _REMOTE_SCHEMES else Path(root).expanduser()


def is_on_s3(place: str) -> bool:
    return urlsplit(place).scheme in S3_SCHEMES

"""Where this installation keeps what is no Python package: the Delta jars, the Java shim, the
archive of Spark's classes.
"""

import os
import sys
from pathlib import Path


def jars_folder() -> Path:
    """Where the jars are kept: ``DCPLAKE_JARS``, else the folder ``jars`` of `data_folder`."""
    if configured := os.environ.get("DCPLAKE_JARS"):
        return Path(configured).expanduser().absolute()
    return data_folder() / "jars"


def data_folder() -> Path:
    """``share/dcplake`` of this Python environment; if that is read-only, the user's cache."""
    shared = Path(sys.prefix) / "share" / "dcplake"
    existing = next(folder for folder in (shared, *shared.parents) if folder.exists())
    if (shared / "jars").is_dir() or os.access(existing, os.W_OK):
        return shared
    return Path.home() / ".cache" / "dcplake"

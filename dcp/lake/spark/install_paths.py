"""The folders of Spark, Delta jars, the Java shim and the archive of Spark's classes."""

import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path

from dcp.errors import SetupError


def jars_folder() -> Path:
    """Return the folder of the jars: ``DCPLAKE_JARS``, or ``jars`` in `data_folder`.

    Raises:
        SetupError: the variable names the home folder of an unknown user.
    """
    if configured := os.environ.get("DCPLAKE_JARS"):
        try:
            return Path(configured).expanduser().absolute()
        except RuntimeError as error:
            raise SetupError(f"DCPLAKE_JARS: found {configured!r}, expected a path") from error
    return data_folder() / "jars"


def data_folder() -> Path:
    """Return ``share/dcplake`` of this Python environment, or the user's cache folder.

    For a user without a home, it is the former even if that is read-only.
    """
    shared = Path(sys.prefix) / "share" / "dcplake"
    existing = next(folder for folder in (shared, *shared.parents) if folder.exists())
    if (shared / "jars").is_dir() or os.access(existing, os.W_OK):
        return shared
    with suppress(RuntimeError):  # this user has no home
        return Path.home() / ".cache" / "dcplake"
    return shared


def spark_home() -> Path | None:
    """Return the Spark inside the package pyspark, whatever ``SPARK_HOME`` says.

    None if pyspark belongs to a separate Spark installation, or is missing.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return folder if (folder / "bin" / "spark-submit").is_file() else None

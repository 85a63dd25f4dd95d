"""Chooses JVM options by the amount of work ahead: short commands compile less.

Measured (benchmarks/README.md): Java's optimising compiler takes 40 % of the CPU of a run that
brings 100 changes; at a million documents it has paid for itself, and a run that brings three
million takes a quarter longer without it. An apply needs it less.
"""

import shlex
from pathlib import Path
from typing import Final

from dcp.lake.spark.install_paths import data_folder

MANY_CHANGES: Final = 1_000_000
"""From so many changes on, well compiled code pays for its compilation."""

# C1 alone. It would get a code cache of 48 MB: Spark fills that, then compiles in circles.
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m"
# Without it the heap is collected five times while Spark's classes are being loaded.
_NO_EARLY_COLLECTIONS: Final = "-XX:MetaspaceSize=256m"


def class_archive_path() -> Path:
    """Return the path of Java's archive of Spark's loaded classes (AppCDS), if set-up made it.

    A JVM with Spark and Delta loads some 18,000 classes before its first commit. The archive has
    them parsed and checked. A JVM with another Java or other jars ignores it silently.
    """
    return data_folder() / "spark-classes.jsa"


def jvm_options(*, is_long: bool) -> str:
    """``is_long``: the JVM serves, or has much to do."""
    archive = class_archive_path()
    return " ".join(
        [
            *([] if is_long else [_QUICK_COMPILER]),
            _NO_EARLY_COLLECTIONS,
            *([shlex.quote(f"-XX:SharedArchiveFile={archive}")] if archive.exists() else []),
        ]
    )

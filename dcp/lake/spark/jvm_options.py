"""Chooses JVM options by the amount of work: short commands compile less.

Source: benchmarks/README.md. Java's optimising compiler takes 40 % of the CPU of a run with 100
changes. With a million documents it pays; without it, three million take a quarter longer.
"""

import shlex
from pathlib import Path
from typing import Final

from dcp.lake.spark.install_paths import data_folder

MANY_CHANGES: Final = 1_000_000
"""From so many changes on, optimised code saves more time than its compilation costs."""

# By default, C1 alone gets a code cache of 48 MB. Spark fills it; Java then recompiles forever.
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=400m"
# By default, loading Spark's classes triggers five collections of the heap.
_NO_EARLY_COLLECTIONS: Final = "-XX:MetaspaceSize=256m"


def class_archive_path() -> Path:
    """Return the path of Java's archive of Spark's classes (AppCDS); set-up may have made it.

    A JVM with Spark and Delta loads some 18,000 classes before its first commit. The archive holds
    them in parsed form. A JVM with another Java or other jars ignores it without a message.
    """
    return data_folder() / "spark-classes.jsa"


def jvm_options(*, is_long: bool) -> str:
    """Return the options; ``is_long``: the JVM serves, or has much work."""
    archive = class_archive_path()
    return " ".join(
        [
            *([] if is_long else [_QUICK_COMPILER]),
            _NO_EARLY_COLLECTIONS,
            *([shlex.quote(f"-XX:SharedArchiveFile={archive}")] if archive.exists() else []),
        ]
    )

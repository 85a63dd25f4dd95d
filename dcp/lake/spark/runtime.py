"""Finds or fetches Java and the Delta jars for Spark, or names what is missing.

A session finds and fetches them by itself; ``python -m dcp.lake.spark.runtime`` does it ahead of
time and says what there is, as `make setup` does. Only the standard library is imported here;
`dcp.lake.spark.jars` asks PySpark for its version.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from dcp.errors import SetupError
from dcp.lake.spark.jars import delta_jars
from dcp.lake.spark.java import find_java_home, java_version
from dcp.lake.spark.published_jars import DELTA_VERSION

__all__ = ["Runtime", "delta_jars", "find_java_home", "prepare"]


@dataclass(frozen=True, slots=True)
class Runtime:
    java_home: Path
    java_version: str
    jars: tuple[Path, ...]


def prepare() -> Runtime:
    """Find Java, and fetch missing jars.

    Raises:
        SetupError: something is missing that cannot be fetched; names the remedy.
    """
    java_home = find_java_home()
    return Runtime(java_home, java_version(java_home), tuple(delta_jars()))


def main() -> int:
    try:
        runtime = prepare()
    except SetupError as error:
        print(f"dcplake: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Java {runtime.java_version} in {runtime.java_home}")
    print(f"Delta {DELTA_VERSION}, {len(runtime.jars)} jars in {runtime.jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Finds or fetches Java and the Delta jars, or names the missing part. It starts neither.

A session does this by itself; ``python -m dcp.lake.spark.runtime`` does it before, as `make setup`.
"""

import sys

from dcp.errors import SetupError
from dcp.lake.spark.jars import delta_jars
from dcp.lake.spark.java import find_java_home, java_version


def main() -> int:
    try:
        java_home, jars = find_java_home(), delta_jars()
    except SetupError as error:
        print(f"dcplake: {error}", file=sys.stderr)
        return error.exit_code
    delta_version = jars[0].stem.rpartition("-")[2]
    print(f"Java {java_version(java_home)} in {java_home}")
    print(f"Delta {delta_version}, {len(jars)} jars in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Applies what a lake has received: ``spark-submit jobs/apply.py --config FILE``.

This is ``dcplake apply``, with its options, its output and its exit codes
(docs/operations.md), as a file that schedulers and ``spark-submit`` can name.
"""

import sys
from collections.abc import Sequence

from dcp.cli.main import main as dcplake


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    return dcplake(["apply", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())

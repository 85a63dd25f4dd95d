"""``dcplake package``: write the Python environment of tasks into an archive."""

import sys
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, BadParameter

from dcp.cli.terminal.output import say

EPILOG: Final = """\
What to do with it on which cluster: docs/howto/deploy.md. The driver does not use it:
it runs in this environment."""
_ENDINGS: Final = (".tar.gz", ".tgz")
"""Of the names that Spark unpacks, those of such a file."""


def _archive(text: str) -> Path:
    if not text.endswith(_ENDINGS):
        raise BadParameter(f"found {text!r}, expected a name that ends with {_ENDINGS[0]}")
    return Path(text)


def run(
    *,
    file: Annotated[
        Path, Argument(parser=_archive, metavar="FILE.tar.gz", help="the archive to write")
    ],
) -> int:
    """Write, and say how it is used."""
    from dcp.lake.spark.environment_archive import python_of_archive, write_environment_archive

    packages = write_environment_archive(file)
    say(
        f"{file}: {len(packages)} packages, dcplake and Delta's jars,"
        f" {file.stat().st_size:,} bytes, for a cluster whose machines have {python_of_archive()}\n"
        f"spark-submit --archives {file}#environment"
        " --conf spark.pyspark.python=./environment/bin/python"
        f" --conf spark.pyspark.driver.python={sys.executable} JOB"
    )
    return 0

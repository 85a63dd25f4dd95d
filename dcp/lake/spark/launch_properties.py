"""Passes Spark's settings to a starting JVM in a file with mode 0600, not on its command line.

PySpark gives them to ``spark-submit`` as ``--conf key=value``, and every user of the machine sees a
command line; settings hold secrets (those of S3, say). The file is gone when the JVM is there.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.spark.jvm_environment import environment

SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""PySpark takes the arguments of ``spark-submit`` from this variable; users set it, too."""

_OPTION: Final = "--properties-file"
_AS_IT_IS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/,")


@contextmanager
def launch_properties(settings: Mapping[str, str]) -> Iterator[None]:
    """Give ``settings`` to the JVM that PySpark starts meanwhile.

    They win over the user's ``spark-defaults.conf``. A user's ``--conf`` wins over them at the
    JVM's start; in the session they win.

    Raises:
        ConfigError: the user's arguments name a file of their own; Spark reads only one.
        OSError: the file cannot be written.
    """
    theirs = os.environ.get(SUBMIT_ARGUMENTS)
    if any(word.partition("=")[0] == _OPTION for word in shlex.split(theirs or "")):
        raise ConfigError(
            f"{SUBMIT_ARGUMENTS}: found {_OPTION}, which dcplake uses itself; expected these "
            "settings in [spark.conf], or in the spark-defaults.conf of SPARK_CONF_DIR"
        )
    with tempfile.TemporaryDirectory(prefix="dcplake-") as folder:
        path = Path(folder) / "spark.properties"
        path.touch(0o600)
        path.write_text(properties_text(settings), "ascii")
        ours = f"{_OPTION} {shlex.quote(str(path))} --load-spark-defaults"
        with environment({SUBMIT_ARGUMENTS: f"{ours} {theirs or 'pyspark-shell'}"}):
            yield


def properties_text(settings: Mapping[str, str]) -> str:
    return "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in settings.items())


def escaped(text: str) -> str:
    """Escape a key or a value into ASCII, since Java reads such files as Latin-1."""
    return "".join(each if each in _AS_IT_IS else _units(each) for each in text)


def _units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))

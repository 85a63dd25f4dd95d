"""Fixes the environment of Spark's JVMs and Python tasks, independent of machine and locale.

A locale with other digits would change the names of commits. One without UTF-8 changes file names.
Spark does not start on a machine without a name, or for a user without a home. Python tasks would
import modules from the current folder.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dcp.errors import ConfigError
from dcp.lake.spark.install_paths import spark_home
from dcp.lake.spark.java import find_java_home
from dcp.lake.spark.leftovers import home_folder, libraries_folder, private_folder, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

_MALLOC_ARENAS: Final = "2"

_UTF8_LOCALE: Final = "C.UTF-8"

_LANGUAGE_OPTIONS: Final = (
    "-Duser.language=en -Duser.country=US -Duser.timezone=UTC -Dfile.encoding=UTF-8"
)
"""By default, Java takes these from the machine."""

_VARIABLES_OF_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Every Java reads these variables, also the one that parses Spark's command line.

``_JAVA_OPTIONS`` overrides the command line.
"""

_LIBRARY_FOLDERS: Final = (
    "ZstdTempFolder",
    "org.xerial.snappy.tempdir",
    "io.netty.native.workdir",
    "commons.crypto.lib.tempdir",
)
"""Properties for the folders into which Spark's libraries unpack native code."""

_STYLE: Final = "java.time.format.DecimalStyle"
"""Java's class with the digits of the default locale."""


def jvm_variables(master: str) -> dict[str, str | None]:
    """Return the environment variables for a JVM that this process starts; None: unset."""
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(find_java_home()),
        # Java encodes file names by the locale; no option sets it.
        "LC_ALL": _UTF8_LOCALE,
        # By default, glibc gives many threads an arena each, which keeps freed memory.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", _MALLOC_ARENAS),
        # With these, PySpark would make a session of Spark Connect.
        "SPARK_REMOTE": None,
        "SPARK_API_MODE": None,
    }
    for name in _VARIABLES_OF_OPTIONS:
        if theirs := os.environ.get(name):
            variables[name] = f"{theirs} {_LANGUAGE_OPTIONS}"
    if (home := spark_home()) is not None:
        variables["SPARK_HOME"] = str(home)
    if master.startswith("local"):  # Spark looks up the machine's name, which may not resolve
        variables |= {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_LOCAL_HOSTNAME": LOOPBACK}
    return variables


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables for processes that start inside the block; None removes one."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def driver_java_options() -> str:
    """Return a local JVM's options: its language, and folders that it can use."""
    # Java takes the home from the list of users only, and puts temporary files into /tmp.
    home = home_folder() or private_folder()
    folders = {"java.io.tmpdir": temporary_folder(), "user.home": home}
    if not os.access(home, os.W_OK):
        folders["ivy.home"] = private_folder()
    if (libraries := libraries_folder()) is not None:
        folders |= dict.fromkeys(_LIBRARY_FOLDERS, libraries)
    given = (shlex.quote(f"-D{name}={folder}") for name, folder in folders.items())
    return " ".join((_LANGUAGE_OPTIONS, *given))


def task_settings() -> dict[str, str]:
    """Return settings that give executors and Python tasks the same environment."""
    return {
        "spark.executor.extraJavaOptions": _LANGUAGE_OPTIONS,
        "spark.executorEnv.LC_ALL": _UTF8_LOCALE,
        "spark.executorEnv.PYTHONUTF8": "1",
        # Otherwise Python imports a `dcp` in the current folder before the installed one.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }


def set_language(jvm: Any) -> None:
    """Set the language of a running JVM. No other program may use the JVM."""
    java = jvm.java.util
    java.Locale.setDefault(java.Locale.US)
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("UTC"))


def refuse_language(spark: "SparkSession", jvm: Any, folder: Path | None) -> None:
    """Refuse a session whose JVM cannot name a lake's files.

    ``jvm`` is None under Spark Connect. ``folder`` is the folder of a local lake.

    Raises:
        ConfigError: its locale has other digits, or it does not encode file names in UTF-8.
    """
    if jvm is None:
        [[style]] = spark.sql(f"SELECT java_method('{_STYLE}', 'ofDefaultLocale')").collect()
    else:
        style = jvm.java.time.format.DecimalStyle.ofDefaultLocale().toString()
    if not style.startswith("DecimalStyle[0"):
        raise ConfigError(
            f"found a Spark session whose JVM writes numbers in the digits of its locale, {style}. "
            "No reader would find the files of Delta's log; expected -Duser.language=en "
            "in spark.driver.extraJavaOptions where the session starts"
        )
    if jvm is not None and folder is not None and not str(folder.absolute()).isascii():
        found = jvm.java.lang.System.getProperty("sun.jnu.encoding")
        if found.upper() != "UTF-8":
            raise ConfigError(
                f"{folder}: found a Spark session whose JVM names files in {found}, which would "
                "write to another folder; expected LC_ALL=C.UTF-8 in the environment where it "
                "starts (that of spark-submit)"
            )

"""Says what Spark's JVMs and its Python tasks inherit, whatever machine and country they start in.

They would take everything as it is. Then digits of another script name commits that no reader
finds, a locale without UTF-8 writes other names of files than this process reads, a machine without
a name or a home stops Spark's start, and tasks import what happens to be in the current folder.
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
"""Java takes these from the machine otherwise."""

_VARIABLES_OF_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Every Java reads these, also the one that parses Spark's command line.

``_JAVA_OPTIONS`` wins over that line.
"""

_LIBRARY_FOLDERS: Final = (
    "ZstdTempFolder",
    "org.xerial.snappy.tempdir",
    "io.netty.native.workdir",
    "commons.crypto.lib.tempdir",
)
"""Properties for the folders where Spark's libraries unpack their native parts."""

_STYLE: Final = "java.time.format.DecimalStyle"
"""Java's class that knows the digits of the default locale."""


def jvm_variables(master: str) -> dict[str, str | None]:
    """Return the environment variables of a JVM that this process starts; None: unset."""
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(find_java_home()),
        # Java encodes names of files by it, and by no option.
        "LC_ALL": _UTF8_LOCALE,
        # glibc gives every thread an arena of its own, which keeps what was freed; Python's, too.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", _MALLOC_ARENAS),
        # PySpark would make a session of Spark Connect, where they say so.
        "SPARK_REMOTE": None,
        "SPARK_API_MODE": None,
    }
    for name in _VARIABLES_OF_OPTIONS:
        if theirs := os.environ.get(name):
            variables[name] = f"{theirs} {_LANGUAGE_OPTIONS}"
    if (home := spark_home()) is not None:
        variables["SPARK_HOME"] = str(home)
    if master.startswith("local"):  # Spark asks for the machine's name, which may not resolve
        variables |= {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_LOCAL_HOSTNAME": LOOPBACK}
    return variables


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Give processes that start meanwhile these environment variables; None removes one."""
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
    """Return a local JVM's options: language, and folders that it can use.

    Java looks for the home only in the list of users, and puts temporary files into /tmp.
    """
    home = home_folder() or private_folder()
    folders = {"java.io.tmpdir": temporary_folder(), "user.home": home}
    if not os.access(home, os.W_OK):
        folders["ivy.home"] = private_folder()
    if (libraries := libraries_folder()) is not None:
        folders |= dict.fromkeys(_LIBRARY_FOLDERS, libraries)
    given = (shlex.quote(f"-D{name}={folder}") for name, folder in folders.items())
    return " ".join((_LANGUAGE_OPTIONS, *given))


def task_settings() -> dict[str, str]:
    """Return settings for the same environment in executors and Python tasks, here or elsewhere."""
    return {
        "spark.executor.extraJavaOptions": _LANGUAGE_OPTIONS,
        "spark.executorEnv.LC_ALL": _UTF8_LOCALE,
        "spark.executorEnv.PYTHONUTF8": "1",
        # Python would import a `dcp` of the current folder before the installed one.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }


def set_language(jvm: Any) -> None:
    """Give a running JVM the same language; only if this program alone uses it."""
    java = jvm.java.util
    java.Locale.setDefault(java.Locale.US)
    java.TimeZone.setDefault(java.TimeZone.getTimeZone("UTC"))


def refuse_language(spark: "SparkSession", jvm: Any, folder: Path | None) -> None:
    """Refuse a session whose JVM cannot name a lake's files; ``folder`` is that of a local lake.

    ``jvm`` is None under Spark Connect.

    Raises:
        ConfigError: its locale has other digits, or its file names are not in UTF-8.
    """
    if jvm is None:
        [[style]] = spark.sql(f"SELECT java_method('{_STYLE}', 'ofDefaultLocale')").collect()
    else:
        style = jvm.java.time.format.DecimalStyle.ofDefaultLocale().toString()
    if not style.startswith("DecimalStyle[0"):
        raise ConfigError(
            f"found a Spark session whose JVM writes numbers in the digits of its locale, {style}, "
            "where Delta's files would get names that nobody finds; expected -Duser.language=en "
            "in spark.driver.extraJavaOptions where it starts"
        )
    if jvm is not None and folder is not None and not str(folder.absolute()).isascii():
        found = jvm.java.lang.System.getProperty("sun.jnu.encoding")
        if found.upper() != "UTF-8":
            raise ConfigError(
                f"{folder}: found a Spark session whose JVM names files in {found}, which would "
                "write to another folder; expected LC_ALL=C.UTF-8 in the environment where it "
                "starts (that of spark-submit)"
            )

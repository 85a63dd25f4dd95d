"""Passes Spark's settings to a starting JVM in a file with mode 0600, not on its command line.

Every user of the machine can read a command line, and settings contain secrets (such as keys for
S3). The file exists only until the JVM has started.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.spark.jvm_environment import environment

SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""PySpark takes the arguments of ``spark-submit`` from this variable. Users may set it, too."""

_OPTION: Final = "--properties-file"
_AS_IT_IS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/,")

_LOG4J: Final = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file

appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {spark_log}
appender.file.filePattern = {spark_log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 50MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3

# It warns that a query plan was cut short for Spark's log: nothing that an operator can act upon.
logger.truncation.name = org.apache.spark.sql.catalyst.util.SparkStringUtils
logger.truncation.level = error
"""
"""Sends warnings to a file, and nothing to the screen."""


@contextmanager
def launch_properties(settings: Mapping[str, str]) -> Iterator[None]:
    """Pass ``settings`` to the JVM that PySpark starts inside the block.

    They override the user's ``spark-defaults.conf``. A user's ``--conf`` overrides them when the
    JVM starts; in the session they override it.

    Raises:
        ConfigError: the user's arguments have a properties file; Spark reads only one.
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
    """Escape a key or value as ASCII, because Java reads properties files as Latin-1."""
    return "".join(
        each
        if each in _AS_IT_IS
        else re.sub("....", r"\\u\g<0>", each.encode("utf-16-be", "surrogatepass").hex())
        for each in text
    )


def write_log4j_properties(spark_log: Path) -> Path:
    spark_log = spark_log.absolute()
    spark_log.parent.mkdir(parents=True, exist_ok=True)
    path = spark_log.with_name(spark_log.name + ".log4j2.properties")
    path.write_text(_LOG4J.format(spark_log=escaped(str(spark_log))), encoding="ascii")
    return path

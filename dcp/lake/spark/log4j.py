"""Configures Spark's logging: warnings to a file, nothing to the screen."""

from pathlib import Path
from typing import Final

from dcp.lake.spark.launch_properties import escaped

PROPERTIES: Final = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file

appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 50MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3

# It warns that a query plan was cut short for the log: nothing that an operator can act upon.
logger.truncation.name = org.apache.spark.sql.catalyst.util.SparkStringUtils
logger.truncation.level = error
"""


def write_log4j_properties(log_file: Path) -> Path:
    """Write the logging configuration beside ``log_file`` and return its path."""
    log_file = log_file.absolute()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    path = log_file.with_name(log_file.name + ".log4j2.properties")
    path.write_text(PROPERTIES.format(log=escaped(str(log_file))), encoding="ascii")
    return path

"""The settings of Spark that dcplake's rows and statements depend on; users cannot choose them.

Pure: `dcp.lake.spark.session` sets them in every session in which dcplake works.
"""

from typing import Final

REQUIRED_SPARK: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A value that does not fit a column ends the statement, and is not stored as another one.
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # TIMESTAMP in a statement is the type with a zone.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Parquet as `dcp.lake.store.data_file` writes it. By default Spark writes INT96, whose
    # nanoseconds other readers count in 64 bits: they show wrong years before 1678 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # The calendar of ISO 8601 in every year; LEGACY moves days before 1582-10-15.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    # Keys written as literals may contain ${, backslashes and quotes.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    # A quoted name is a name and no regular expression.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.caseSensitive": "false",
    # A file that is gone or damaged ends the statement: its rows would be missing.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Parquet's reader serialises an IN list recursively, as a chain of ORs. At 1,000 it overflowed
    # the stack of a task, which ends the whole JVM.
    "spark.sql.parquet.pushdown.inFilterThreshold": "200",
    # A MERGE writes the columns that the table has.
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # A version is needed until the rollback horizon has passed since it was superseded.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # A VACUUM commits what it kept and how many files it deleted; by default not on S3.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}

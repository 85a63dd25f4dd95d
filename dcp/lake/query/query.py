"""Shows a lake for queries: its tables under their plain names, its views, and SQL answers.

A folder lake's tables get their names in a database of their own, in the session's catalog where
that one ends with the session; so ``docs VERSION AS OF 3`` works as it does in a catalog schema.
A catalog that outlives the session (Hive, Unity) is other people's: nothing is made in it, and the
names are temporary views. Nothing that somebody else made is ever dropped or replaced, except
temporary views of the same names in the same session.
"""

import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dcp.errors import ConfigError, DcplakeError
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.transaction import session_settings_for_a_while
from dcp.lake.config.required_spark import REQUIRED_SPARK
from dcp.lake.query.views import register_views
from dcp.lake.spark.failures import known_error
from dcp.lake.spark.session_settings import DELTA_CATALOG
from dcp.lake.store.sql import dotted, quoted, string
from dcp.lake.store.table import MissingVersionError
from dcp.lake.tables.tables import (
    CONTROL_TABLE,
    QUALITY_TABLE,
    LakeTables,
    ReplicaTable,
    replicas_in,
)

_TIMES: Final = (TimestampType, TimestampNTZType, DateType)


def with_times_as_texts(frame: DataFrame) -> DataFrame:
    """Return the rows with times and dates as texts; the session's time zone must be UTC."""
    wanted = _as_text(frame.schema)
    if wanted == frame.schema:
        return frame
    names = [f"c{place}" for place in range(len(frame.columns))]  # no two are alike
    renamed = frame.toDF(*names)
    columns = (
        renamed[name].cast(field.dataType) for name, field in zip(names, wanted, strict=True)
    )
    return renamed.select(*columns).toDF(*frame.columns)


def told_times(value: Any, kind: DataType) -> Any:
    """Return a value of ``kind`` with its times in ISO 8601; times with a zone end in +00:00."""
    match value, kind:
        case None, _:
            return None
        case str(), TimestampType():
            return value.replace(" ", "T") + "+00:00"
        case str(), TimestampNTZType():
            return value.replace(" ", "T")
        case tuple(), StructType(fields=fields):
            told = (
                told_times(inner, field.dataType)
                for inner, field in zip(value, fields, strict=True)
            )
            return _row(value, list(told))
        case list(), ArrayType(elementType=inner):
            return [told_times(each, inner) for each in value]
        case dict(), MapType(keyType=key, valueType=inner):
            return {told_times(k, key): told_times(v, inner) for k, v in value.items()}
        case _:
            return value


def _row(like: tuple[Any, ...], values: list[Any]) -> Row:
    row = Row(*values)
    row.__fields__ = like.__fields__  # type: ignore[attr-defined]  # Row has it, and so has `like`
    return row


def _as_text(kind: DataType) -> Any:
    match kind:
        case StructType():
            return StructType(
                [
                    StructField(each.name, _as_text(each.dataType), each.nullable, each.metadata)
                    for each in kind
                ]
            )
        case ArrayType():
            return ArrayType(_as_text(kind.elementType), kind.containsNull)
        case MapType():
            keys, values = _as_text(kind.keyType), _as_text(kind.valueType)
            return MapType(keys, values, kind.valueContainsNull)
        case _:
            return StringType() if isinstance(kind, _TIMES) else kind


_SESSION_CATALOG: Final = "spark_catalog"
_NO_TIME_TRAVEL: Final = "UNSUPPORTED_FEATURE.TIME_TRAVEL"
_NO_PYTHON_VALUE: Final = "NOT_IMPLEMENTED"
_AS_STRING: Final = "; this type has no value in Python: cast it to STRING"

_CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's; they print each error with its stack, as JSON, to standard error."""

_NAMING: Final = threading.Lock()
"""Held while a user's session has other settings: two threads would put back each other's."""

_MESSAGE_CHARACTERS: Final = 2000
_PLACE: Final = re.compile(r"\n== SQL(?: \((line [^\n]*)\))? ==")
"""Spark's message cites the statement from here on, and holds nothing else after it."""
_PLAN: Final = re.compile(r"(?:; line \d+ pos \d+|SQLSTATE: \w{5})(?=;\n)")
"""Stands before the query plan that Spark adds to the errors of its analysis."""

# Spark goes on with a comment behind a backslash at a line's end: such a comment is not skipped.
_BLANK: Final = r"(?:\s|--[^\\\r\n]*[\r\n])*"
_READING: Final = re.compile(rf"{_BLANK}(?:SELECT|SHOW|DESCRIBE|DESC)\b", re.IGNORECASE)
_EXPLAIN: Final = re.compile(
    rf"{_BLANK}EXPLAIN\b{_BLANK}(?:(?:LOGICAL|FORMATTED|EXTENDED|CODEGEN|COST)\b)?", re.IGNORECASE
)
_PARSE_PLACE: Final = re.compile(r" \(line \d+, pos(?:ition)? \d+\)$")


def show_for_queries(lake: LakeTables) -> LakeTables:
    """Name the lake's tables and make its views, in its own session; return the lake."""
    replicas = replicas_in(lake)
    name_tables(lake, replicas)
    register_views(lake, replicas)
    return lake


def show_to_user(lake: LakeTables, user: SparkSession) -> LakeTables:
    """Do the same in a user's session, by temporary views; return the lake in that session.

    Meanwhile the session has the settings of `REQUIRED_SPARK`, which a view keeps; afterwards its
    own.
    """
    replicas = replicas_in(lake)
    theirs = replace(lake, store=SparkStore(lambda: user, lake.location))
    with _NAMING, session_settings_for_a_while(user, REQUIRED_SPARK):
        name_tables_in_views(theirs, replicas)
        register_views(theirs, replicas, temporary=True)
    return theirs


def name_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Make the lake's tables known by their plain names, in the session's current schema."""
    if lake.location.schema is not None:
        lake.spark.sql(f"USE {dotted(lake.location.schema)}")
        return
    if not catalog_ends_with_session(lake.spark):
        name_tables_in_views(lake, replicas)
        return
    # One database per lake and place, so that a name in it can only be ours, and is right.
    database = "dcplake_" + sha256(f"{lake.identity.lake_id} {lake.location}".encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / database[:24]
    database = f"{_SESSION_CATALOG}.{quoted(database[:24])}"
    place = string(f"file:{folder}")  # no URI: Spark would take its %20 for a name
    lake.spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION {place}")
    with suppress(OSError):  # Spark makes the folder, but the tables are in the lake's
        folder.rmdir()
    for table in _shown_tables(lake, replicas):
        lake.table(table).register(f"{database}.{quoted(table)}")
    lake.spark.sql(f"USE {database}")


def name_tables_in_views(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Make them known by temporary views, which leave the session's schema and catalog alone."""
    for table in _shown_tables(lake, replicas):
        lake.spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {quoted(table)} AS "
            f"SELECT * FROM {lake.table_sql(table)}"
        )


def _shown_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> list[str]:
    others = (each for each in (CONTROL_TABLE, QUALITY_TABLE) if lake.table(each).exists())
    return ["changes", *(replica.name for replica in replicas), *others]


def catalog_ends_with_session(spark: SparkSession) -> bool:
    """Return whether the session's catalog is in memory: names in it affect nobody else."""
    return (
        spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
        and spark.conf.get(f"spark.sql.catalog.{_SESSION_CATALOG}", "") == DELTA_CATALOG
    )


def refuse_writing(spark: SparkSession, statement: str) -> None:
    """Refuse a statement that may do anything but read, by Spark's own parser, without running it.

    Two proofs. A statement that begins with SELECT, SHOW or DESCRIBE can be nothing else. And only
    a query can stand in brackets after ``WITH name AS``: no INSERT behind a WITH, no script, no
    EXECUTE IMMEDIATE. EXPLAIN is no proof by itself: Spark runs what EXECUTE IMMEDIATE is given in
    order to explain it. This guards against mistakes, not against functions that a query may call.

    Raises:
        ConfigError: it may write, or Spark does not understand it.
    """
    explained = _EXPLAIN.match(statement)
    rest = statement[explained.end() :] if explained else statement
    if _READING.match(rest):
        return
    query = rest.rstrip().rstrip(";")
    try:
        with _context_loggers_silent():
            spark.sql(f"EXPLAIN WITH question AS (\n{query}\n) SELECT 1")
    except ParseException as error:
        found = _PARSE_PLACE.sub("", one_line(str(error)))
        raise ConfigError(
            f"SQL: found no query: {found}; expected a query, SHOW, DESCRIBE, or EXPLAIN of these:"
            " other statements run with --write only"
        ) from None


def answer(spark: SparkSession, question: str) -> DataFrame:
    """Return the answer to one SQL statement.

    Raises:
        ConfigError: Spark does not understand it; the message is Spark's own, on one line, without
            its stack. Most errors of a statement's values appear in `first_rows` only.
        DcplakeError: Spark failed for another reason than the statement.
    """
    with errors_on_one_line():
        return spark.sql(question)


def first_rows(found: DataFrame, count: int) -> list[Row]:
    """Return the first rows of an answer: Spark computes it now.

    Times and dates, at any depth, are texts as ``2026-01-31T10:00:00.25+00:00``: in UTC, and of any
    year. Python's own end with the year 9999, and PySpark's have the machine's zone.

    Raises:
        ConfigError: the statement divides by zero, casts an unfit value and the like.
        DcplakeError: Spark failed for another reason than the statement.
    """
    with errors_on_one_line():
        kinds = found.schema
        try:
            rows = with_times_as_texts(found.limit(count)).collect()
            return [told_times(row, kinds) for row in rows]
        except TypeError:  # "unhashable": a map becomes a dict
            raise ConfigError(
                f"SQL: found a map whose keys hold arrays or maps{_AS_STRING}"
            ) from None


@contextmanager
def errors_on_one_line() -> Iterator[None]:
    """Turn Spark's errors of a statement into one line, in its words.

    Raises:
        ConfigError: the statement is wrong.
        DcplakeError: Spark failed for another reason than the statement.
    """
    try:
        with _context_loggers_silent():
            yield
    except (PySparkException, Py4JJavaError) as error:
        if "java.lang.StackOverflowError" in str(error):
            raise ConfigError(
                "SQL: found a statement that is nested too deeply for Spark, expected fewer "
                "brackets or terms within each other"
            ) from None
        raise known_error(error, "SQL") or _in_its_words(error) from None
    except MissingVersionError as error:
        told = one_line(str(error))
        raise known_error(error, "SQL") or ConfigError(f"SQL: {told}") from None
    except (ValueError, OverflowError) as error:  # an interval beyond Python's own
        raise ConfigError(f"SQL: {one_line(str(error))}{_AS_STRING}") from None


def _in_its_words(error: PySparkException | Py4JJavaError) -> DcplakeError:
    if isinstance(error, PySparkException):
        return ConfigError(f"SQL: {one_line(str(error))}{_hint(error)}")
    # Of a class that PySpark does not know: a task failed.
    message = error.java_exception.toString().split("\nDriver stacktrace", 1)[0]
    return DcplakeError(f"SQL: {one_line(message)}")


@contextmanager
def _context_loggers_silent() -> Iterator[None]:
    loggers = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _hint(error: PySparkException) -> str:
    condition = error.getCondition() or ""
    if condition.startswith(_NO_TIME_TRAVEL):
        return (
            "; the plain names are views in this session, because its catalog outlives it: "
            "for time travel name the table delta.`<folder of the lake>/docs`"
        )
    return _AS_STRING if condition == _NO_PYTHON_VALUE else ""


def one_line(message: str) -> str:
    """Return Spark's message without stack, plan and citation, but with the place that it names."""
    text = message.split("\n\nJVM stacktrace", 1)[0].split("\n\tat ", 1)[0]
    place = ""
    if cited := _PLACE.search(text):
        text, place = text[: cited.start()], f" ({cited[1]})" if cited[1] else ""
    if plan := _PLAN.search(text):
        text = text[: plan.end()]
    line = " ".join(part.strip() for part in text.splitlines() if part.strip()) + place
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"

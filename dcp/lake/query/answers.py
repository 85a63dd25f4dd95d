"""Answers one SQL statement of a user: its rows, or one line with the fault."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession

from dcp.errors import ConfigError, DcplakeError
from dcp.lake.query.told_times import told_times, with_times_as_texts
from dcp.lake.spark.failures import known_error
from dcp.lake.store.table import MissingVersionError

_NO_TIME_TRAVEL: Final = "UNSUPPORTED_FEATURE.TIME_TRAVEL"
_NO_PYTHON_VALUE: Final = "NOT_IMPLEMENTED"
_AS_STRING: Final = "; this type has no value in Python: cast it to STRING"

_CONTEXT_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers: they print each error with its stack, as JSON, to standard error."""

_MESSAGE_CHARACTERS: Final = 2000
_CITED: Final = re.compile(r"\n== SQL(?: \((line [^\n]*)\))? ==")
"""Spark's message cites the statement from here to its end."""
_PLAN: Final = re.compile(r"(?:; line \d+ pos \d+|SQLSTATE: \w{5})(?=;\n)")
"""Precedes the query plan that Spark adds to errors of its analysis."""

# Spark goes on with a comment behind a backslash at a line's end: such a comment is not skipped.
_BLANK: Final = r"(?:\s|--[^\\\r\n]*[\r\n])*"
_READING: Final = re.compile(rf"{_BLANK}(?:SELECT|SHOW|DESCRIBE|DESC)\b", re.IGNORECASE)
_EXPLAIN: Final = re.compile(
    rf"{_BLANK}EXPLAIN\b{_BLANK}(?:(?:LOGICAL|FORMATTED|EXTENDED|CODEGEN|COST)\b)?", re.IGNORECASE
)
_PARSE_POSITION: Final = re.compile(r" \(line \d+, pos(?:ition)? \d+\)$")


def refuse_writing(spark: SparkSession, statement: str) -> None:
    """Refuse a statement that may write, by Spark's own parser, without running it.

    Two proofs count. A statement that begins with SELECT, SHOW or DESCRIBE only reads. And only a
    query can stand in brackets after ``WITH name AS``: this excludes INSERT behind a WITH, scripts
    and EXECUTE IMMEDIATE. EXPLAIN proves nothing: to explain EXECUTE IMMEDIATE, Spark runs its
    argument. The check prevents mistakes; it does not restrict the functions that a query calls.

    Raises:
        ConfigError: the statement may write, or Spark does not understand it.
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
        found = _PARSE_POSITION.sub("", one_line(str(error)))
        raise ConfigError(
            f"SQL: found no query: {found}; expected a query, SHOW, DESCRIBE, or EXPLAIN of these:"
            " other statements run with --write only"
        ) from None


def answer(spark: SparkSession, question: str) -> DataFrame:
    """Return the answer to one SQL statement.

    Raises:
        ConfigError: Spark does not understand it; the message is Spark's own, on one line, without
            its stack. Most errors in values appear only in `head`.
        DcplakeError: Spark failed for a reason outside the statement.
    """
    with errors_on_one_line():
        return spark.sql(question)


def head(found: DataFrame, count: int) -> list[Row]:
    """Compute an answer, and return its first rows.

    Times and dates, at any depth, are texts as ``2026-01-31T10:00:00.25+00:00``: in UTC, and of any
    year. Python's own times end with the year 9999, and PySpark's have the machine's zone.

    Raises:
        ConfigError: the statement divides by zero, casts an unfit value and the like.
        DcplakeError: Spark failed for a reason outside the statement.
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
    """Turn Spark's errors of a statement into one line, in Spark's words.

    Raises:
        ConfigError: the statement is wrong.
        DcplakeError: Spark failed for a reason outside the statement.
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
    """Return Spark's message with the line of the fault, without stack, plan and citation."""
    text = message.split("\n\nJVM stacktrace", 1)[0].split("\n\tat ", 1)[0]
    at = ""
    if cited := _CITED.search(text):
        text, at = text[: cited.start()], f" ({cited[1]})" if cited[1] else ""
    if plan := _PLAN.search(text):
        text = text[: plan.end()]
    line = " ".join(part.strip() for part in text.splitlines() if part.strip()) + at
    return line if len(line) <= _MESSAGE_CHARACTERS else line[: _MESSAGE_CHARACTERS - 1] + "…"

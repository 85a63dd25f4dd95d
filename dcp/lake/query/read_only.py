"""Refuses SQL statements that may write, by Spark's own parser and without running them.

Two proofs. A statement that begins with SELECT, SHOW or DESCRIBE can be nothing else. And only a
query can stand in brackets after ``WITH name AS``: no INSERT behind a WITH, no script, no EXECUTE
IMMEDIATE. EXPLAIN is no proof by itself: Spark runs what EXECUTE IMMEDIATE is given in order to
explain it. This guards against mistakes, not against functions that a query may call.
"""

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import ParseException

from dcp.errors import ConfigError
from dcp.lake.query.query import context_loggers_silent, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark goes on with a comment behind a backslash at a line's end: such a comment is not skipped.
_BLANK: Final = r"(?:\s|--[^\\\r\n]*[\r\n])*"
_READING: Final = re.compile(rf"{_BLANK}(?:SELECT|SHOW|DESCRIBE|DESC)\b", re.IGNORECASE)
_EXPLAIN: Final = re.compile(
    rf"{_BLANK}EXPLAIN\b{_BLANK}(?:(?:LOGICAL|FORMATTED|EXTENDED|CODEGEN|COST)\b)?", re.IGNORECASE
)
_PLACE: Final = re.compile(r" \(line \d+, pos(?:ition)? \d+\)$")


def refuse_writing(spark: "SparkSession", statement: str) -> None:
    """Refuse a statement that may do anything but read.

    Raises:
        ConfigError: it may write, or Spark does not understand it.
    """
    explained = _EXPLAIN.match(statement)
    rest = statement[explained.end() :] if explained else statement
    if _READING.match(rest):
        return
    query = rest.rstrip().rstrip(";")
    try:
        with context_loggers_silent():
            spark.sql(f"EXPLAIN WITH question AS (\n{query}\n) SELECT 1")
    except ParseException as error:
        found = _PLACE.sub("", one_line(str(error)))
        raise ConfigError(
            f"SQL: found no query: {found}; expected a query, SHOW, DESCRIBE, or EXPLAIN of these:"
            " other statements run with --write only"
        ) from None

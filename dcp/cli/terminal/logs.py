"""Configures a command's logging: our own warnings to standard error, nothing else.

A service may let more through (the relay does, of its own).

Spark's gateway logs a stack for every interrupted call; with no handler at the root, Python would
print it.

A record's message is one line, whatever it quotes.
"""

import logging
import sys
from types import TracebackType

from dcp.printable import printable, printable_lines

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class OneLineFormatter(logging.Formatter):
    """Shows escaped what a record quotes of others, in its stack too."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Return the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802  (logging's name)
        """Return the stack, in lines."""
        return printable_lines(super().formatException(ei))


def set_up_logs() -> None:
    """Send warnings of dcplake to standard error, one line each."""
    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("dcp")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(message)s"))
        ours.addHandler(handler)

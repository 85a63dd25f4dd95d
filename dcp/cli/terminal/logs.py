"""Configures a command's logging: our own warnings to standard error, nothing else.

A service may let more through (the relay does, of its own).

Spark's gateway logs a stack for every interrupted call; with no handler at the root, Python would
print it.

A record is one line, whatever it quotes; a JSON object where the command was given ``--json``.
"""

import logging
import sys
import time
from datetime import UTC, datetime
from types import TracebackType

from dcp.cli.terminal.output import json_text
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


class JsonFormatter(logging.Formatter):
    """Makes a record one JSON object on one line: time, level, logger, message, and its stack."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = _fields(record.levelname, record.name, record.getMessage(), record.created)
        if record.exc_info:
            fields["stack"] = self.formatException(record.exc_info)
        return json_text(fields)


def set_up_logs(*, as_json: bool = False) -> None:
    """Send warnings of dcplake to standard error, one line each."""
    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("dcp")
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler(sys.stderr))
    plain = OneLineFormatter("%(asctime)s %(levelname)s %(message)s")
    ours.handlers[0].setFormatter(JsonFormatter() if as_json else plain)


def log_end(command: str, reason: str, exit_code: int, *, as_json: bool) -> None:
    """Say on standard error why a command ended; one that finished its work says nothing."""
    told = printable_lines(f"{command}: {reason}")
    if as_json:
        fields = _fields("ERROR", command, reason, time.time())
        told = json_text(fields | {"exit_code": exit_code})
    print(told, file=sys.stderr, flush=True)


def _fields(level: str, logger: str, message: str, at: float) -> dict[str, object]:
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return {"time": when, "level": level, "logger": logger, "message": message}

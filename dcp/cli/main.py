"""Entry point of ``dcplake``: finds the command and runs it; an error is a line and an exit code.

Each command is a module of this package with ``add_arguments`` and ``run``; it is imported only
when it is asked for, so that ``dcplake --help`` does not wait for Spark.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol, cast

from dcp import __version__
from dcp.cli.logs import set_up_logs
from dcp.errors import DcplakeError
from dcp.printable import printable, printable_lines
from dcp.suggestions import did_you_mean

COMMANDS: Final = {
    "demo": "producer, real documents, replication and SQL on the result, all on this machine",
    "serve": "run the embedded Couchbase-like producer",
    "relay": "serve many DCP consumers from one stream of each vbucket, with a disk of its own",
    "load": "store JSON lines in a bucket",
    "add-node": "start another node of the embedded producer",
    "rebalance": "let the nodes of the embedded producer own evenly many vbuckets",
    "failover": "let a node of the embedded producer be gone, and its replicas go on",
    "plan": "say what a run would do, without doing it",
    "run": "replicate a bucket into its lake",
    "status": "where the lake stands, and what it waits for",
    "top": "connections, windows and stages of a run that is going on, live",
    "maintain": "clean up: small files, old files, log rows that no rollback can need",
    "verify": "compare the replica tables with the whole bucket, by key, seqno and CAS",
    "sql": "ask the lake a question in SQL",
    "tail": "show the newest changes, and follow them",
    "rollbacks": "what rollbacks took back, key by key",
    "resync": "let vbuckets be streamed again from their beginning",
}


class Command(Protocol):
    """What a command module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit code."""


def _command(name: str) -> Command:
    return cast(Command, importlib.import_module(f"dcp.cli.{name.replace('-', '_')}"))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the options are listed."""

    def error(self, message: str) -> NoReturn:
        """End with code 2."""
        self.exit(
            2, printable(f"{self.prog}: {message}; {self.prog} --help says what there is") + "\n"
        )

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of an option's choices; argparse calls this."""
        if action.choices is not None and value not in action.choices:
            choices = [str(each) for each in action.choices]
            meant = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(
                action, f"found {value!r}{meant}, expected one of {', '.join(choices)}"
            )

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """End where words are left that belong to no option and no argument."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is not None:
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"unknown option {option}{did_you_mean(option, known)}")
        if words:
            self.error(f"found {' '.join(words)!r}, expected nothing more")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    asked = next((word for word in words if not word.startswith("-")), None)
    parser = inner = _Parser(
        prog="dcplake",
        description="Keeps a Couchbase bucket as Delta Lake tables, exactly.",
        epilog="Each command has its own --help. Exit codes are listed in docs/operations.md.",
    )
    parser.add_argument("--version", action="version", version=f"dcplake {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
        if name == asked:
            _command(name).add_arguments(sub)
            inner = sub
    if asked is not None and asked not in COMMANDS:
        parser.error(
            f"unknown command {asked!r}{did_you_mean(asked, COMMANDS)}, expected one of "
            f"{', '.join(COMMANDS)}"
        )
    arguments, unknown = parser.parse_known_args(words)
    inner.refuse_unknown(unknown)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (and is what the ``dcplake`` script calls)."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _arguments(words)
    return ended(arguments.command, lambda: _command(arguments.command).run(arguments))


def ended(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command or a job; return its exit code, and say in a line why it failed."""
    set_up_logs()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return work()
    except KeyboardInterrupt:
        print(f"dcplake {name}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # our reader (head, less) has seen enough, but we may not be done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as failure:
        from dcp.lake.spark.failures import one_line_error

        error = failure if isinstance(failure, DcplakeError) else one_line_error(failure)
        if error is None:  # a bug: its stack says where
            raise
        print(printable_lines(f"dcplake {name}: {error}"), file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

"""Entry point of ``dcplake``: finds the command and runs it; an error is a line and an exit code.

Each command is a module of this package with ``add_arguments`` and ``run``; it is imported only
when it is asked for, so that ``dcplake --help`` does not wait for Spark.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, Protocol, cast

from dcp import __version__
from dcp.cli.logs import set_up_logs
from dcp.errors import DcplakeError
from dcp.printable import printable_lines

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


def _parser(asked: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (and is what the ``dcplake`` script calls)."""
    words = list(sys.argv[1:] if argv is None else argv)
    asked = next((word for word in words if not word.startswith("-")), None)
    arguments = _parser(asked).parse_args(words)
    set_up_logs()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _command(arguments.command).run(arguments)
    except DcplakeError as error:
        print(printable_lines(f"dcplake {arguments.command}: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"dcplake {arguments.command}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # our reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

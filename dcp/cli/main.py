"""Entry point of ``dcplake``: finds the command and runs it; an error is a line and an exit code.

Each command is the function ``run`` of a module, whose parameters are its options. The module is
imported only when its command is asked for, so that ``dcplake --help`` does not wait for Spark.
"""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dcp import __version__
from dcp.cli.terminal.interrupts import INTERRUPTED, end_at_once, interruptible
from dcp.cli.terminal.logs import log_end, set_up_logs
from dcp.errors import DcplakeError
from dcp.printable import printable
from dcp.suggestions import refusal_of_gone

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Replicate": {
        "init": ("lake", "write a configuration file, by asking the cluster"),
        "doctor": (
            "lake",
            "try each step from the configuration to a stream, and name the one that fails",
        ),
        "plan": ("lake", "show what a run would do, without doing it"),
        "run": ("lake", "replicate a bucket into its lake"),
        "apply": (
            "lake",
            "merge received rounds into the replica tables, for runs that do not apply",
        ),
        "maintain": (
            "lake",
            "clean up: small files, old files, rows of the change log that no rollback can need",
        ),
        "pause": ("lake", "stop further rounds of a lake until it is resumed"),
        "resume": ("lake", "continue the rounds of a paused lake"),
        "package": ("lake", "write the Python environment of tasks as an archive for spark-submit"),
        "relay": (
            "servers",
            "serve many DCP consumers from one stream of each vbucket, with a disk of its own",
        ),
    },
    "Look": {
        "status": ("lake", "show how far the lake is, and what it waits for"),
        "sql": ("lake", "ask the lake a question in SQL"),
        "verify": (
            "lake",
            "compare the replica tables with the whole bucket, by key, seqno and CAS",
        ),
        "tail": ("lake", "show the newest changes, and follow them"),
        "top": ("lake", "show connections, windows and stages of a running run"),
        "rollbacks": ("lake", "list the rows that rollbacks took back, key by key"),
        "cut": ("lake", "find versions of all tables that hold one round, as SQL views"),
        "metrics": ("lake", "print lag, rounds, rollbacks and sizes of a lake for Prometheus"),
        "report": ("lake", "write the page of a lake as a file: lag, rounds, rollbacks, tables"),
        "schema": ("lake", "propose a contract of typed columns from documents"),
    },
    "Repair": {
        "resync": ("lake", "stream vbuckets again from their beginning"),
        "erase": ("lake", "take documents out, with all their versions"),
        "backfill": ("lake", "rebuild vbuckets from replica vbuckets during replication"),
    },
    "Test cluster": {
        "demo": (
            "servers",
            "producer, real documents, replication and SQL on the result, all on this machine",
        ),
        "serve": ("servers", "run the embedded Couchbase-like producer"),
        "load": ("servers", "store JSON lines in a bucket"),
        "add-node": ("servers", "start another node of the embedded producer"),
        "rebalance": (
            "servers",
            "spread the vbuckets evenly over the nodes of the embedded producer",
        ),
        "failover": (
            "servers",
            "remove a node of the embedded producer, and promote its replicas",
        ),
        "replication": (
            "servers",
            "pause or resume the embedded producer's replicas on other nodes",
        ),
    },
}
"""The commands by what they are for, the everyday ones first: each with the sub-package of its
module, which has its name, and a summary."""

COMMANDS: Final = {name: about for group in GROUPS.values() for name, about in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_command = bool(words) and words[0] in COMMANDS
    program, as_json = f"dcplake {words[0]}" if is_command else "dcplake", "--json" in words
    try:
        with interruptible(program, as_json=as_json):
            if (refusal := _refusal(words)) is not None:
                code = 2
                log_end(program, refusal, code, as_json=as_json)
            elif is_command:
                code = parsed(command(words[0]), words[1:], program)
            else:
                code = parsed(_list_of_commands(), words, program)
    except KeyboardInterrupt:  # before the command itself had begun
        code = INTERRUPTED
        log_end(program, "stopped", code, as_json=as_json)
    if argv is None:
        end_at_once(code)
    return code


def run_job(command: str) -> None:
    """Do what ``dcplake COMMAND`` does with this process's words, and end as it does."""
    sys.exit(main([command, *sys.argv[1:]]))


def _refusal(words: Sequence[str]) -> str | None:
    """Return what to say of words that name what dcplake does not have, and what helps."""
    options = {word.partition("=")[0] for word in words[1:]}
    names = [*words[:1], *(f"{words[0]} {option}" for option in options)]
    return next(filter(None, map(refusal_of_gone, names)), None)


def parsed(application: typer.Typer, words: Sequence[str], program: str) -> int:
    """Run what the words ask of a program; return its exit code, 2 where they are wrong."""
    as_json = "--json" in words
    try:
        found = get_command(application).main(words, program, standalone_mode=False)
        if callable(found):
            return cast(int, found())
    except typer.TyperException as error:
        told = printable(f"{_message(error)}; {program} --help says what there is")
        log_end(program, told, error.exit_code, as_json=as_json)
        return error.exit_code
    if found == INTERRUPTED:  # while typer read the words: it makes this code of the interrupt
        log_end(program, "stopped", INTERRUPTED, as_json=as_json)
    return cast(int, found)


class _Grouped(TyperGroup):
    """Lists the commands in their groups; typer itself does so only where rich writes the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, its names in a column that is the same in all."""
        widest = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(widest), summary) for name, (_, summary) in commands.items()]
                )


class _Command(TyperCommand):
    """Refuses blank values: a variable that the shell did not find leaves one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        params: list[Any] = self.get_params(ctx)
        for param in params:
            found = given.get(param.name)
            for value in found if isinstance(found, list | tuple) else [found]:
                if isinstance(value, str) and not value.strip():
                    what = "give one" if param.required else "give one, or leave this out"
                    told = f"found {value!r}, expected a value: {what}"
                    raise typer.BadParameter(told, ctx, param)
        return super().parse_args(ctx, args)


def new_application(about: str, epilog: str | None = None) -> typer.Typer:
    """Return an application without commands; its help is plain text, and waits for no rich."""
    return typer.Typer(
        help=about,
        epilog=epilog,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(name: str) -> typer.Typer:
    """Return the application of one command."""
    package, summary = COMMANDS[name]
    module = importlib.import_module(f"dcp.cli.{package}.{name.replace('-', '_')}")
    about, epilog = summary[0].upper() + summary[1:], getattr(module, "EPILOG", None)
    return application_of(name, module.run, about, epilog)


def application_of(
    name: str, run: Callable[..., int], about: str, epilog: str | None = None
) -> typer.Typer:
    """Return the application whose only command, or job, is a function."""
    application = new_application("")
    application.command(cls=_Command, help=about, epilog=epilog)(_with_exit_code(name, run))
    return application


def _list_of_commands() -> typer.Typer:
    application = new_application(
        "Keeps a Couchbase bucket as Delta Lake tables, exactly.",
        "Each command has its own --help. docs/howto/act-on-an-exit-code.md lists exit codes.",
    )
    application.callback(cls=_Grouped)(_dcplake)
    for name, (_, summary) in COMMANDS.items():
        application.command(name, short_help=summary)(_only_listed)
    return application


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"dcplake {__version__}")
        raise typer.Exit


def _dcplake(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options before the command."""


def _only_listed() -> None:
    raise typer.BadParameter("found options before the command, expected it as the first word")


def _message(error: typer.TyperException) -> str:
    """Return what is wrong with the words; where a value is, with its option before it."""
    if not isinstance(error, typer.BadParameter) or error.param is None or not error.message:
        return error.format_message().removesuffix(".")
    message = error.message.removeprefix("Value error, ").removesuffix(".")
    if message.startswith("Input should be "):  # pydantic's words, which do not quote it
        from pydantic import ValidationError

        if isinstance(cause := error.__cause__, ValidationError):
            message = f"found {cause.errors()[0]['input']!r}: {message}"
    return f"{error.param.opts[0]}: {message}"


def _with_exit_code(name: str, run: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Return what typer calls with the options of the function ``run`` of a command or a job.

    typer calls the returned function, which only binds the options. ``parsed`` calls its result
    outside typer, because typer turns an interrupt into an exit code.
    """

    @wraps(run)
    def with_options(**options: object) -> Callable[[], int]:
        as_json = options.get("json") is True
        return lambda: run_to_exit_code(name, lambda: run(**options), as_json=as_json)

    return with_options


def run_to_exit_code(name: str, work: Callable[[], int], *, as_json: bool = False) -> int:
    """Do the work of a command or a job; return its exit code, and say in a line why it failed.

    Raises:
        TyperException: its words are wrong, which ``parsed`` tells.
    """
    set_up_logs(as_json=as_json)
    try:
        with interruptible(f"dcplake {name}", as_json=as_json):
            return work()
    except KeyboardInterrupt:
        log_end(f"dcplake {name}", "stopped", INTERRUPTED, as_json=as_json)
        return INTERRUPTED
    except BrokenPipeError:  # our reader (head, less) has seen enough, but we may not be done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except typer.TyperException:
        raise
    except Exception as failure:
        from dcp.lake.spark.failures import one_line_error

        error = failure if isinstance(failure, DcplakeError) else one_line_error(failure)
        if error is None:  # a bug: its stack says where
            if not as_json:
                raise
            logging.getLogger("dcp").exception("a bug in dcplake")
            log_end(f"dcplake {name}", repr(failure), 1, as_json=True)
            return 1
        log_end(f"dcplake {name}", str(error), error.exit_code, as_json=as_json)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

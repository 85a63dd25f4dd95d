"""Measures a lake in an S3 server beside one in a folder: CPU seconds of commands, and requests.

    make bench BENCH=object_store ARGS="--documents 1000000 --bytes 1000 --loads 2"

A producer and two lakes of it: one in a folder, one in an S3 server, whose CPU does not count. It
is moto's, which closes the connection after each answer; ``--server versitygw`` keeps connections,
as real stores do, and its requests are not counted (`make interop-setup` builds it). Each command
runs for both, as a process from start to exit; which one goes first changes from repetition to
repetition: ``--loads`` first loads, each into new lakes; in the last ones ``status``, ``plan``,
``run --once`` with nothing to do, and after some changes. Beside each load stands a plain Spark
session that reads the load's rows of ``changes`` and appends them to a new table. Last come rounds
with their applies in a Spark session that goes on, from the third on, and maintenance, once, of the
folder first. CPU is that of the whole tree of processes.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Lock
from typing import IO, Final, cast

import psutil

from benchmarks._commands import adopt_orphans, cost_of
from benchmarks._producer import PASSWORD, USER, BenchProducer, producer
from dcp.lake.adapters.opening import spark_of
from dcp.lake.config.settings_load import load_settings
from dcp.lake.run.replicate import run
from tests.interop.store_servers import versitygw
from tests.lake.object_store import BUCKET, ObjectStore, Request, kind_of

_PLACES: Final = ("folder", "store")
_KINDS: Final = ("GET", "HEAD", "LIST", "PUT", "DELETE")
_MAINTENANCE: Final = ("clean", "optimize", "vacuum")
_WARM_UP: Final = 2
_COMMANDS: Final = ("status", "plan", "run --once, idle")


@dataclass(slots=True)
class Measured:
    """What something took: CPU seconds in a folder, on S3, and the requests of the latter."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    requests: list[Counter[str]] = field(default_factory=list)


class Bench:
    """The two lakes, and what was measured of them."""

    def __init__(self, folder: Path, source: BenchProducer, options: Mapping[str, str]) -> None:
        self._folder, self._source = folder, source
        self._asked, self._turns, self._seed = Counter[str](), Counter[str](), 0
        self._counting = Lock()
        self.found: dict[str, Measured] = defaultdict(Measured)
        self._options, self._lake = options, ""
        (folder / "password").write_text(PASSWORD)

    def go_on_with(self, lake: str) -> None:
        """Let all that follows work on lakes of that name."""
        self._lake = lake
        lines = [
            "[source]",
            f"seeds = {list(self._source.seeds)}",
            f"username = '{USER}'",
            f"password_file = '{self._folder / 'password'}'",
            "[lake]",
        ]
        told = ", ".join(f"{key} = '{value}'" for key, value in self._options.items())
        on_s3 = [f"root = 's3://{BUCKET}/{lake}'", f"storage_options = {{{told}}}"]
        Path(self.config("folder")).write_text("\n".join([*lines, f"root = '{lake}'"]))
        Path(self.config("store")).write_text("\n".join([*lines, *on_s3]))

    def change(self, count: int) -> None:
        """Let the producer overwrite so many documents."""
        self._seed += 1
        self._source.update(count, self._seed)

    def command(self, title: str, *words: str) -> None:
        """Measure a command of ``dcplake`` for both."""
        for place in self._turn(title):
            ours = [sys.executable, "-m", "dcp.cli.main", words[0], "--config", self.config(place)]
            self._measure(title, place, [*ours, *words[1:]])

    def plain_append(self) -> None:
        """Measure a Spark session that appends the rows of ``changes`` elsewhere."""
        for place in self._turn("plain Spark append"):
            words = [sys.executable, "-m", "benchmarks.object_store", "--append"]
            rows = str(self._folder / self._lake / "changes")
            self._measure("plain Spark append", place, [*words, self.config(place), rows])

    def warm_rounds(self, changes: int, repetitions: int) -> None:
        """Measure rounds with their applies in drivers that go on."""
        drivers = {place: Driver(self.config(place)) for place in _PLACES}
        title = f"warm round and apply, {changes:,}"
        for number in range(_WARM_UP + repetitions):
            self.change(changes)
            for place in self._turn(title):
                before, seconds = self._asked.copy(), drivers[place].round()
                if number >= _WARM_UP:
                    self._note(title, place, seconds, before)
        for driver in drivers.values():
            driver.end()

    def config(self, place: str) -> str:
        """Return the configuration of a place."""
        return str(self._folder / f"{place}.toml")

    def _turn(self, title: str) -> Sequence[str]:
        """Return the places; each goes first in every other turn, since the second finds warm
        caches.
        """
        self._turns[title] += 1
        return _PLACES if self._turns[title] % 2 else _PLACES[::-1]

    def _measure(self, title: str, place: str, words: Sequence[str]) -> None:
        before = self._asked.copy()
        self._note(title, place, cost_of(words).cpu_seconds, before)

    def _note(self, title: str, place: str, seconds: float, before: Counter[str]) -> None:
        self.found[title].seconds[place].append(seconds)
        if place == "store":
            self.found[title].requests.append(self._asked - before)
        print(f"{title}, {place}: {seconds:.1f} s", flush=True)

    def count(self, request: Request) -> None:
        with self._counting:  # the server has a thread for each connection
            self._asked[kind_of(request)] += 1


class Driver:
    """A driver that goes on: `drive` in a process of its own."""

    def __init__(self, config: str) -> None:
        words = [sys.executable, "-m", "benchmarks.object_store", "--drive", config]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def round(self) -> float:
        """Let it run until nothing is left to do; return the CPU seconds that it took."""
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(b"\n")
        stdin.flush()
        return float(cast("IO[bytes]", self._process.stdout).readline())

    def end(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def drive(config: str) -> None:
    """Run once for each line of the input, in one session; print the CPU seconds of each."""
    settings = load_settings(Path(config), {})
    spark = spark_of(settings)()
    for _ in sys.stdin:
        before = _tree_seconds()
        run(settings, once=True, spark=spark)
        print(_tree_seconds() - before, flush=True)


def append(config: str, rows: str) -> None:
    """Append rows of a Delta table to a new one beside the lake."""
    settings = load_settings(Path(config), {})
    frame = spark_of(settings)().read.format("delta").load(rows)
    frame.write.format("delta").mode("append").save(f"{settings.lake.root}-plain")


def _tree_seconds() -> float:
    seconds = 0.0
    for each in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used = each.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=500)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--loads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--server", choices=("moto", "versitygw"), default="moto")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--append", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(arguments.drive)
        return
    if arguments.append:
        append(*arguments.append)
        return
    adopt_orphans()
    with (
        tempfile.TemporaryDirectory() as name,
        producer(arguments.documents, arguments.bytes) as source,
        ExitStack() as servers,
    ):
        if arguments.server == "moto":
            store = servers.enter_context(ObjectStore())
            bench = Bench(Path(name), source, store.options)
            store.answer = bench.count
        else:
            server = servers.enter_context(versitygw(Path(name) / "server"))
            bench = Bench(Path(name), source, server.options)
        for number in range(arguments.loads):
            bench.go_on_with(f"lake-{number}")
            bench.command("first load into changes", "run", "--once", "--set", "apply.when=never")
            bench.plain_append()
            bench.command("first apply", "apply")
        for _ in range(arguments.repetitions):
            for title in _COMMANDS:
                bench.command(title, *title.partition(",")[0].split())
            bench.change(arguments.changes)
            bench.command(f"run --once, {arguments.changes:,} changes", "run", "--once")
        bench.warm_rounds(arguments.changes, arguments.repetitions)
        for step in _MAINTENANCE:
            bench.command(f"maintain, {step}", "maintain", "--step", step)
    told = f"{arguments.documents:,} documents of {arguments.bytes:,} bytes"
    print(f"{told}, CPU seconds; medians of so many repetitions (×)")
    kinds = " ".join(f"{kind:>6}" for kind in _KINDS)
    print(f"{'':28} {'×':>3} {'folder':>7} {'S3':>7} {'ratio':>6}   requests: {kinds}")
    for title, each in bench.found.items():
        in_folder, in_store = (median(each.seconds[place]) for place in _PLACES)
        ratio = in_store / in_folder
        print(
            f"{title:28} {len(each.requests):3} {in_folder:7.1f} {in_store:7.1f} {ratio:6.2f}  "
            + " " * 11
            + " ".join(f"{median(made[kind] for made in each.requests):6.0f}" for kind in _KINDS)
        )


if __name__ == "__main__":
    main()

"""Measures a lake in an S3 server beside one in a folder: CPU seconds of commands, and requests.

    make bench BENCH=object_store ARGS="--documents 50000 --repetitions 3"

A producer and two lakes of it: one in a folder, one in the S3 server of moto. That server runs in
this process, so that its CPU does not count. Each command runs for both in turn, as a process from
start to exit: the first load, then ``status``, ``plan`` and ``run --once`` with nothing to do, and
``run --once`` after 100 changes. CPU is that of the whole tree of processes (`start_up`).
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

from benchmarks._producer import PASSWORD, USER
from benchmarks.start_up import adopt_orphans, cpu_seconds
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.lake.object_store import BUCKET, ObjectStore, Request

_CHANGES: Final = 100
_TEXT: Final = b"x" * 480
_FIRST_LOAD: Final = "run --once, first load"
_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "status": ["status"],
    "plan": ["plan"],
    "run --once, idle": ["run", "--once"],
    f"run --once, {_CHANGES} changes": ["run", "--once"],
}


@dataclass(slots=True)
class Measured:
    """What one command took: CPU seconds in a folder, on S3, and the requests of the latter."""

    folder: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    adopt_orphans()
    asked = 0

    def count(_: Request) -> None:
        nonlocal asked
        asked += 1

    with (
        tempfile.TemporaryDirectory() as name,
        ObjectStore() as store,
        ProducerCluster(ClusterSettings(vbuckets=64, users={USER: PASSWORD})) as cluster,
    ):
        store.answer = count
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        source = [
            "[source]",
            f"seeds = {list(cluster.seeds)}",
            f"username = '{USER}'",
            f"password_file = '{folder / 'password'}'",
            "[lake]",
        ]
        options = ", ".join(f"{key} = '{value}'" for key, value in store.options.items())
        on_s3 = [f"root = 's3://{BUCKET}/lake'", f"storage_options = {{{options}}}"]
        (folder / "folder.toml").write_text("\n".join([*source, "root = 'lake'"]))
        (folder / "store.toml").write_text("\n".join([*source, *on_s3]))

        def took(words: Sequence[str], place: str) -> float:
            ours = [sys.executable, "-m", "dcp.cli.main", words[0]]
            config = ["--config", str(folder / f"{place}.toml")]
            return cpu_seconds([*ours, *config, *words[1:]])[0]

        def write(first: int, count: int) -> None:
            with cluster.batch():
                for number in range(first, first + count):
                    value = b'{"n": %d, "text": "%s"}' % (monotonic() * 1e6, _TEXT)
                    cluster.set(b"key-%d" % number, value)

        def measure(words: Sequence[str], into: Measured) -> None:
            into.folder.append(took(words, "folder"))
            before = asked
            into.store.append(took(words, "store"))
            into.requests.append(asked - before)

        write(0, arguments.documents)
        found = {title: Measured() for title in (_FIRST_LOAD, *_COMMANDS)}
        measure(["run", "--once"], found[_FIRST_LOAD])
        for repetition in range(arguments.repetitions):
            for title, words in _COMMANDS.items():
                if title.endswith("changes"):
                    write(repetition * _CHANGES, _CHANGES)
                measure(words, found[title])
    print(f"{arguments.documents:,} documents, CPU seconds; medians of {arguments.repetitions}")
    print(f"{'':26} {'folder':>7} {'S3':>7} {'ratio':>6} {'requests':>9}")
    for title, each in found.items():
        in_folder, in_store = median(each.folder), median(each.store)
        print(
            f"{title:26} {in_folder:7.1f} {in_store:7.1f} {in_store / in_folder:6.2f} "
            f"{median(each.requests):9.0f}"
        )


if __name__ == "__main__":
    main()

"""Measures looks at a lake whose log lists many files, and at one with many collections.

    make bench BENCH=scale ARGS="--files 1000 10000 100000 --collections 10 100 1000"

A lake of 1,024 vbuckets, made by ``dcplake run``. Then the logs of ``changes`` and ``docs`` list
files that nobody wrote, of other rounds and vbuckets: a command that opened one of them would fail.
Then the lake gets copies of its replica, one for each collection. After each step commands run as
processes of their own. Printed are the CPU seconds of each with all its processes, its wall
seconds, and the resident memory of its Python; and the bytes that a round adds for each vbucket.

With ``--heaps 512m 1g`` a run with each heap of the driver's JVM applies 100 changes in 3 vbuckets
after each step of files, too. The files that nobody wrote are of the vbuckets between these.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import CalledProcessError
from time import time
from typing import Any, Final
from uuid import uuid4

from deltalake import DeltaTable

from benchmarks._commands import adopt_orphans, cost_of, lake_options, sets_of
from benchmarks._producer import PASSWORD, USER
from dcp.lake.tables.schema import RowKind
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.types import vbucket_of

_VBUCKETS: Final = 1024
_DOCUMENTS: Final = 10_000
_FILES_OF_A_COMMIT: Final = 10_000
_CHANGED: Final = {3: 34, 500: 33, 1000: 33}
"""So many documents of these vbuckets change before an apply."""
_OTHERS: Final = [number for number in range(_VBUCKETS) if number not in _CHANGED]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--collections", type=int, nargs="*", default=[10, 100, 1_000])
    parser.add_argument("--heaps", nargs="*", default=[], help="as spark.driver_memory: 512m")
    arguments = parser.parse_args()
    adopt_orphans()
    cluster_settings = ClusterSettings(vbuckets=_VBUCKETS, users={USER: PASSWORD})
    with (
        tempfile.TemporaryDirectory(prefix="dcplake-bench-") as name,
        ProducerCluster(cluster_settings) as cluster,
    ):
        folder = Path(name)
        sets = sets_of(lake_options(cluster.seeds, folder))
        ours = [sys.executable, "-m", "dcp.cli.main"]
        commands = {
            "status": [*ours, "status", *sets],
            "plan": [*ours, "plan", *sets],
            "run --once, idle": [*ours, "run", "--once", *sets],
        }
        with cluster.batch():
            for number in range(_DOCUMENTS):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
            _change(cluster, 0)
        cost_of(commands["run --once, idle"])
        cluster.set(b"key-0", b"{}")
        cost_of(commands["run --once, idle"])
        changes = folder / "lake" / "changes"
        print(
            f"a round with one change: {_bytes_of_newest_round(changes) / _VBUCKETS:.0f} bytes "
            f"of data file for each of {_VBUCKETS} vbuckets"
        )
        print(f"{'':32}{'CPU s':>8} {'wall s':>7} {'MiB':>7}")
        _measure("as it is", commands)
        listed = 0
        for files in arguments.files:
            for table in (changes, folder / "lake" / "docs"):
                _list_files(table, files - listed)
            listed = max(listed, files)
            _measure(f"{files:,} files", commands)
            for number, heap in enumerate(arguments.heaps, start=files):
                _change(cluster, number)
                words = [*commands["run --once, idle"], "--set", f"spark.driver_memory={heap}"]
                _measure("", {f"run --once, apply, heap {heap}": words})
        made = 0
        for collections in arguments.collections:
            _add_collections(folder / "lake", range(made, collections))
            made = max(made, collections)
            _measure(f"{collections:,} collections", commands)


def _measure(title: str, commands: dict[str, list[str]]) -> None:
    if title:
        print(title)
    for name, words in commands.items():
        try:
            cost = cost_of(words)
        except CalledProcessError as failure:
            print(f"  {name:30} fails with exit code {failure.returncode}", flush=True)
            continue
        figures = f"{cost.cpu_seconds:8.2f} {cost.wall_seconds:7.2f} {cost.resident_mib:7.0f}"
        print(f"  {name:30}{figures}", flush=True)


def _change(cluster: ProducerCluster, value: int) -> None:
    """Write the documents that an apply brings into the replica."""
    left, number = dict(_CHANGED), 0
    with cluster.batch():
        while any(left.values()):
            key = b"changed-%d" % number
            vbucket = vbucket_of(key, _VBUCKETS)
            if left.get(vbucket):
                left[vbucket] -= 1
                cluster.set(key, b"%d" % value)
            number += 1


def _bytes_of_newest_round(changes: Path) -> int:
    table = DeltaTable(str(changes))
    newest = changes / "_delta_log" / f"{table.version():020d}.json"
    adds = (json.loads(line).get("add") for line in newest.read_text("utf-8").splitlines())
    return sum(each["size"] for each in adds if each)


def _list_files(table: Path, count: int) -> None:
    """List files in the log as OPTIMIZE would, then write a checkpoint.

    They are of rounds and vbuckets that nobody asks for, and tell the statistics of real ones.
    """
    now = int(time() * 1000)
    for first in range(0, count, _FILES_OF_A_COMMIT):
        numbers = range(first, min(first + _FILES_OF_A_COMMIT, count))
        adds = (
            {
                "add": {
                    "path": f"part-{uuid4()}.zstd.parquet",
                    "partitionValues": {},
                    "size": 1_000_000,
                    "modificationTime": now,
                    "dataChange": False,
                    "stats": json.dumps(_statistics(table.name, number)),
                }
            }
            for number in numbers
        )
        _commit(table, adds, "OPTIMIZE")
    DeltaTable(str(table)).create_checkpoint()


def _statistics(table: str, number: int) -> dict[str, Any]:
    vbucket = _OTHERS[number % len(_OTHERS)]
    told: dict[str, tuple[object, object]] = {"vbucket": (vbucket, vbucket), "seqno": (1, 2_000)}
    if table == "docs":
        told |= {
            "key": (f"changed-{number:020}", f"key-{number:020}"),
            "modified_at": ("2026-01-01T00:00:00.000Z", "2026-02-01T00:00:00.000Z"),
            "datatype": (0, 1),
        }
    else:
        told |= {
            "round": (-number - 1, -number - 1),
            "epoch": (0, 0),
            "kind": (RowKind.MUTATION, RowKind.MUTATION),
            "collection_id": (0, 0),
        }
    return {
        "numRecords": 2_000,
        "minValues": {name: low for name, (low, _) in told.items()},
        "maxValues": {name: high for name, (_, high) in told.items()},
        "nullCount": dict.fromkeys(told, 0),
        "tightBounds": True,
    }


def _add_collections(lake: Path, numbers: Iterable[int]) -> None:
    """Copy ``docs`` under other names, and name the copies in the properties of ``changes``."""
    identifiers = [0x1000 + number for number in numbers]
    for identifier in identifiers:
        copy = lake / f"docs__inventory__c{identifier}__{identifier:x}"
        shutil.copytree(lake / "docs", copy)
        (metadata,) = _actions(copy, "metaData")
        properties = {
            **metadata["configuration"],
            "dcplake.collectionId": str(identifier),
        }
        _commit(
            copy, [{"metaData": {**metadata, "configuration": properties}}], "SET TBLPROPERTIES"
        )
    if identifiers:
        *_, metadata = _actions(lake / "changes", "metaData")
        listed = {
            f"dcplake.replica.docs__inventory__c{each}__{each:x}": f"{each} inventory.c{each}"
            for each in identifiers
        }
        properties = {**metadata["configuration"], **listed}
        _commit(
            lake / "changes",
            [{"metaData": {**metadata, "configuration": properties}}],
            "SET TBLPROPERTIES",
        )
        DeltaTable(str(lake / "changes")).create_checkpoint()


def _actions(table: Path, kind: str) -> Iterator[dict[str, Any]]:
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text("utf-8").splitlines():
            if (found := json.loads(line).get(kind)) is not None:
                yield found


def _commit(table: Path, actions: Iterable[dict[str, Any]], operation: str) -> None:
    version = DeltaTable(str(table)).version() + 1
    info = {"timestamp": int(time() * 1000), "operation": operation, "operationParameters": {}}
    with (table / "_delta_log" / f"{version:020d}.json").open("x", encoding="utf-8") as file:
        for action in ({"commitInfo": info}, *actions):
            file.write(json.dumps(action) + "\n")


if __name__ == "__main__":
    main()

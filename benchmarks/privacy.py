"""A first load with privacy rules and without: seconds of CPU.

    make bench BENCH=privacy ARGS="--documents 300000"

In turn, each as a process of its own from start to exit: ``run --once`` into a new lake, without
applying, of documents of 1 KB with 20 fields: without rules; with one, which hashes a field; with
three, which hash, mask and drop; with three, of documents that each have an escaped quote and an
escaped newline. CPU is that of the whole tree of processes, the producer's left out.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

from benchmarks._commands import CommandCost, adopt_orphans, cost_of, lake_options, report, sets_of
from benchmarks._customers import customers

_ONE: Final = "_default:$.email=hash"
_THREE: Final = f"{_ONE},_default:$.address.street=mask,_default:$.phone=drop"


def _document(number: int, random: Random) -> bytes:
    return _document_of(f"customer {number}", number, random)


def _escaped_document(number: int, random: Random) -> bytes:
    return _document_of(f'customer\n"{number}"', number, random)


def _document_of(name: str, number: int, random: Random) -> bytes:
    content = {
        "id": number,
        "name": name,
        "email": f"customer-{number}@example.com",
        "phone": f"+49 30 {random.randrange(10**8)}",
        "active": number % 3 > 0,
        "balance": random.randrange(10_000_000) / 100,
        "address": {"street": f"{number % 997} Main Street", "city": f"city {number % 499}"},
        "tags": [f"tag-{random.randrange(99)}" for _ in range(3)],
        "lines": [{"sku": f"sku-{number % 4999}", "quantity": each} for each in range(4)],
    }
    content |= {f"note_{each}": random.randbytes(24).hex() for each in range(8)}
    return json.dumps(content | {"pad": "x" * (1000 - len(json.dumps(content)))}).encode()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["DCPLAKE_HASH_KEY"] = "a key for the benchmark"
    with (
        tempfile.TemporaryDirectory() as name,
        customers(arguments.documents, _document) as seeds,
        customers(arguments.documents, _escaped_document) as seeds_of_escaped,
    ):
        runs = {
            "no rules": (seeds, ""),
            "one rule": (seeds, _ONE),
            "three rules": (seeds, _THREE),
            "three rules, escapes": (seeds_of_escaped, _THREE),
        }
        adopt_orphans()
        found: dict[str, list[CommandCost]] = {title: [] for title in runs}
        for _ in range(arguments.repetitions):
            for title, (served, rules) in runs.items():
                shutil.rmtree(Path(name) / "lake", ignore_errors=True)
                options = lake_options(served, Path(name)) | {"apply.when": "never"}
                sets = sets_of(options | ({"privacy.rules": rules} if rules else {}))
                words = [sys.executable, "-m", "dcp.cli.main", "run", "--once", *sets]
                found[title].append(cost_of(words))
        report(found)


if __name__ == "__main__":
    main()

"""A first load with privacy rules and without: seconds of CPU.

    make bench BENCH=privacy ARGS="--documents 300000"

In turn, each as a process of its own from start to exit: ``run --once`` into a new lake, without
applying, of documents of 1 KB with 20 fields: without rules; with one, which hashes a field; with
three, which hash, mask and drop. CPU is that of the whole tree of processes, the producer's left
out.
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
_RULES: Final = {
    "no rules": "",
    "one rule": _ONE,
    "three rules": f"{_ONE},_default:$.address.street=mask,_default:$.phone=drop",
}


def _document(number: int, random: Random) -> bytes:
    content = {
        "id": number,
        "name": f"customer {number}",
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
    ):
        options = lake_options(seeds, Path(name)) | {"apply.when": "never"}
        adopt_orphans()
        found: dict[str, list[CommandCost]] = {title: [] for title in _RULES}
        for _ in range(arguments.repetitions):
            for title, rules in _RULES.items():
                shutil.rmtree(Path(name) / "lake", ignore_errors=True)
                sets = sets_of(options | ({"privacy.rules": rules} if rules else {}))
                words = [sys.executable, "-m", "dcp.cli.main", "run", "--once", *sets]
                found[title].append(cost_of(words))
        report(found)


if __name__ == "__main__":
    main()

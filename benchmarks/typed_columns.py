"""The first apply of many documents, with typed columns and without: seconds of CPU.

    make bench BENCH=typed_columns ARGS="--documents 1000000"

One round is received. Then ``dcplake apply`` merges it into an empty table, in turn without a
contract and with one of twelve paths in each mode, and with ``evolve`` also without any. At last
comes another contract, and all rows are written anew. Then ``dcplake sql`` asks for a field and for
the elements of an array, by the views of typed columns and of the JSON. Each is a process of its
own from start to exit. One document in a thousand does not fit.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final

from benchmarks._commands import CommandCost, adopt_orphans, cost_of, lake_options, report, sets_of
from benchmarks._customers import customers
from dcp.lake.config.contracts import ContractMode

_MISFIT_EVERY: Final = 1000
_CONTRACT: Final = """
collection = "_default._default"
mode = "{mode}"
[columns]
"$.id" = "bigint"
"$.name" = "string"
"$.email" = "string"
"$.active" = "boolean"
"$.balance" = "decimal(12,2)"
"$.score" = "double"
"$.created_at" = "timestamp"
"$.address.street" = "string"
"$.address.city" = "string"
"$.tags[*]" = "string"
"$.lines[*]" = {{ view = "lines" }}
"$.lines[*].sku" = "string"
"$.lines[*].quantity" = "int"
"""

_QUESTIONS: Final = {
    "a field of documents_typed": "SELECT count_if(score > 0.5) FROM documents_typed",
    "of the JSON in documents": """
SELECT count_if(CAST(get_json_object(document, '$.score') AS DOUBLE) > 0.5) FROM documents""",
    "elements of docs_lines": """
SELECT sku, sum(quantity) FROM docs_lines GROUP BY sku ORDER BY sku LIMIT 1""",
    "of the JSON in documents, flattened": """
SELECT line.sku, sum(line.quantity)
FROM documents LATERAL VIEW explode(
  from_json(document, 'lines ARRAY<STRUCT<sku: STRING, quantity: INT>>').lines) AS line
GROUP BY line.sku ORDER BY line.sku LIMIT 1""",
}


def _document(number: int, random: Random) -> bytes:
    content = {
        "id": number,
        "name": f"customer {number}",
        "email": f"customer-{number}@example.com",
        "active": number % 3 > 0 if number % _MISFIT_EVERY else "perhaps",
        "balance": random.randrange(10_000_000) / 100,
        "score": random.random(),
        "created_at": f"2026-01-{number % 28 + 1:02}T10:00:00Z",
        "address": {"street": f"{number % 997} Main Street", "city": f"city {number % 499}"},
        "tags": [f"tag-{random.randrange(99)}" for _ in range(3)],
        "lines": [{"sku": f"sku-{number % 4999}", "quantity": each} for each in range(4)],
    }
    return json.dumps(content).encode()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with customers(arguments.documents, _document) as seeds:
            options = lake_options(seeds, folder) | {"apply.when": "never"}
            adopt_orphans()
            _run(options, "run", "--once")
        received = shutil.move(folder / "lake", folder / "received")
        contracts = {"no contract": ""}
        contracts |= {mode: _CONTRACT.format(mode=mode) for mode in ContractMode}
        contracts["evolve, none named"] = contracts["evolve"].partition("[columns]")[0]
        found: dict[str, list[CommandCost]] = {title: [] for title in contracts}
        again: list[CommandCost] = []
        asked: dict[str, list[CommandCost]] = {title: [] for title in _QUESTIONS}
        for _ in range(arguments.repetitions):
            for title, contract in contracts.items():
                shutil.rmtree(folder / "lake", ignore_errors=True)
                shutil.copytree(received, folder / "lake", copy_function=os.link)
                found[title].append(_apply(folder, options, contract))
            again.append(_apply(folder, options, contracts["quarantine"]))
            for title, question in _QUESTIONS.items():
                asked[title].append(_run(options, "sql", question))
        report(found | {"another contract": again} | asked)


def _apply(folder: Path, options: Mapping[str, str], contract: str) -> CommandCost:
    schemas = folder / "schemas"
    shutil.rmtree(schemas, ignore_errors=True)
    schemas.mkdir()
    if contract:
        (schemas / "default.toml").write_text(contract)
    return _run({**options, "apply.contracts_folder": str(schemas)}, "apply")


def _run(options: Mapping[str, str], *command: str) -> CommandCost:
    return cost_of([sys.executable, "-m", "dcp.cli.main", *command, *sets_of(options)])


if __name__ == "__main__":
    main()

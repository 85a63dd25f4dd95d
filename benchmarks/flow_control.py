"""Throughput and memory by window, sink speed, window policy and relay strategy.

    python -m benchmarks.flow_control [--repetitions N] [--folder F] [--from-csv FILE]

Three parts: one connection by window and by the speed of its sink; connections that share an
executor's quota, by window policy (with their number, with the window, with the sinks' speed);
`dcplake relay` with a fast consumer and a slow one, by strategy (with the slow one's speed, with
the relay's window). It prints a table, and writes flow-control.csv and flow-control.svg into the
folder (benchmarks/results). Medians of the repetitions are shown, each of which measures all
points. --from-csv only draws.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks._flow_picture import picture
from benchmarks._flow_relay import RelayGrid, by_strategy, by_strategy_and_window
from benchmarks._flow_rows import MIB, Row, medians, table, write_csv
from benchmarks._flow_windows import (
    Grid,
    by_policy,
    by_policy_and_speed,
    by_policy_and_window,
    by_window,
)
from benchmarks._producer import producer

VBUCKETS = 16
VALUE_BYTES = 1000
GRID = Grid(
    windows_bytes=(MIB // 16, MIB // 4, MIB, 4 * MIB, 10 * MIB, 50 * MIB),
    window_speeds=(0, 200, 50, 10),
    connections=(1, 2, 4, 8),
    policy_speeds=(0, 10),
    policy_windows_bytes=(MIB // 16, MIB // 4, MIB, 4 * MIB, 10 * MIB),
    policy_sink_speeds=(5, 20, 50, 200),
    together=4,
    seconds=3.0,
)
RELAY_GRID = RelayGrid(
    slow_speeds=(2, 5, 10, 20),
    windows_bytes=(MIB // 4, MIB, 4 * MIB, 10 * MIB),
    slow_speed=5,
    documents=14_000,
    seconds=8.0,
)
DOCUMENTS = 400_000


def measured() -> Iterator[Row]:
    """Measure every point once."""
    with producer(DOCUMENTS, VALUE_BYTES, VBUCKETS) as source:
        yield from by_window(source, GRID)
        yield from by_policy(source, GRID)
        yield from by_policy_and_window(source, GRID)
        yield from by_policy_and_speed(source, GRID)
    yield from by_strategy(RELAY_GRID)
    yield from by_strategy_and_window(RELAY_GRID)


def read_csv(path: Path) -> Iterator[Row]:
    """Read what was measured before."""
    texts = ("part", "line", "sink_limit")
    with path.open(newline="", encoding="utf-8") as file:
        for found in csv.DictReader(file):
            values = {
                field.name: found[field.name]
                if field.name in texts
                else float(found[field.name])
                if found[field.name]
                else None
                for field in fields(Row)
            }
            yield Row(**values)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path("benchmarks/results"), help="for the CSV and the SVG"
    )
    parser.add_argument("--from-csv", type=Path, help="measure nothing, draw these")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.from_csv:
        rows = list(read_csv(arguments.from_csv))
    else:
        rows = []
        for _ in range(arguments.repetitions):
            for row in measured():
                print(row, flush=True)
                rows.append(row)
            write_csv(medians(rows), arguments.folder / "flow-control.csv")
        rows = medians(rows)
    print(table(rows))
    (arguments.folder / "flow-control.svg").write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Paths of metrics through records."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dcp.prometheus import exposition, metrics


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    waits_for: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    label: str
    parts: tuple[Part, ...]
    main: Part | None
    time: datetime
    shares: Mapping[str, float]


TABLE = metrics(
    {"whole": "label"},
    """
size_bytes  parts[part=name].size  Bytes of a part.
size_bytes  main.size              Bytes of a part.
waits       parts[part=name].waits_for[consumer]
    1 for what a part
    waits for.

parts       parts                  How many there are.
time_total  time                   When it was.
share       shares[stage]          Share of a stage.
""",
)


def test_each_way_of_a_path_is_a_sample_with_the_labels_on_it() -> None:
    parts = (Part("a", "c1", 3), Part("b"))
    time = datetime.fromtimestamp(8, UTC)
    full = Whole("x", parts, Part("m", size=5), time, {"spark": 0.5, "": 0.25})
    lines = exposition((TABLE, [full, Whole("y", (), None, time, {})])).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'size_bytes{part="a",whole="x"} 3.0',
        'size_bytes{whole="x"} 5.0',
        'waits{consumer="c1",part="a",whole="x"} 1.0',
        'parts{whole="x"} 2.0',
        'parts{whole="y"} 0.0',
        'time_total{whole="x"} 8.0',
        'time_total{whole="y"} 8.0',
        'share{stage="spark",whole="x"} 0.5',
        'share{stage="unknown",whole="x"} 0.25',
    ]
    assert [line for line in lines if line.startswith("# TYPE")][3] == "# TYPE time_total counter"
    assert "# HELP waits 1 for what a part waits for." in lines

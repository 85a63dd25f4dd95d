"""Declares metrics of records, and renders them in Prometheus' text format.

The format escapes only line feeds. Readers and terminals may misread other unprintable characters
(some stop at NUL), so labels have them escaped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from dcp.printable import printable_lines

Labels = Mapping[str, str]
_Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and the path of its values in a record.

    A path has names of fields. ``replicas[table=name].round`` is the round of each element of a
    tuple; its label ``table`` is the element's field ``name``. At the end of a path a time is told
    in seconds since 1970, a tuple by its length; None has no sample. ``waits_for[consumer]`` is a
    mapping, whose keys are texts of the label, or a text, which is told as 1 unless it is empty.
    """

    name: str
    path: str
    help: str
    labels: Labels
    """By label, a field of the record."""

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self, record: object) -> Iterator[_Sample]:
        return _samples(record, self.labels, self.path.split("."))


Metrics = tuple[Metric, ...]
"""A metric with several paths stands there several times."""


def metrics(labels: Labels, table: str) -> Metrics:
    """Return the metrics of a table. A row has name, path and help; its next lines are indented."""
    rows = (row.split(maxsplit=2) for row in re.split(r"\n+(?! )", table.strip()))
    return tuple(Metric(name, path, " ".join(text.split()), labels) for name, path, text in rows)


def _samples(record: object, labels: Labels, path: Sequence[str]) -> Iterator[_Sample]:
    told = {label: _text(getattr(record, name)) for label, name in labels.items()}
    name, _, inner = path[0].rstrip("]").partition("[")
    found = getattr(record, name)
    if len(path) == 1:
        yield from ((told | own, value) for own, value in _values(found, inner))
        return
    of_parts = dict(each.split("=") for each in inner.split(",") if each)
    for part in found if isinstance(found, tuple) else () if found is None else (found,):
        for own, value in _samples(part, of_parts, path[1:]):
            yield told | own, value


def _values(found: Any, label: str) -> Iterator[_Sample]:
    if isinstance(found, Mapping):
        yield from (({label: _text(key)}, value) for key, value in found.items())
    elif isinstance(found, str):
        yield from [({label: _text(found)}, 1)] if found else ()
    elif isinstance(found, datetime):
        yield {}, found.timestamp()
    elif found is not None:
        yield {}, len(found) if isinstance(found, tuple) else found


def _text(found: object) -> str:
    return printable_lines(str(found)) or "unknown"


class _Families(Collector):
    def __init__(self, parts: Iterable[tuple[Metrics, Sequence[object]]]) -> None:
        self._by_name: dict[str, Family] = {}
        for declared, records in parts:
            for metric in declared:
                family = Family(metric.name.removesuffix("_total"), metric.help, metric.type)
                family = self._by_name.setdefault(metric.name, family)
                for record in records:
                    for labels, value in metric.samples(record):
                        family.add_sample(metric.name, labels, value)

    def collect(self) -> Iterable[Family]:
        return self._by_name.values()


def exposition(*parts: tuple[Metrics, Sequence[object]]) -> str:
    """Return the samples of records under their metrics; each part has metrics and records."""
    return generate_latest(_Families(parts)).decode()

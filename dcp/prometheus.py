"""Samples of declared metrics as one exposition in Prometheus' text format.

The format escapes only line feeds. Readers and terminals may misread other unprintable characters
(some stop at NUL), so labels have them escaped.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from dcp.printable import printable_lines

Metrics = Mapping[str, str]
"""Name of a metric -> its meaning. The names of counters end with ``_total``; others are gauges."""


class _Families(Collector):
    def __init__(self, samples: Iterable[Sample], metrics: Metrics) -> None:
        self._of = {
            name: Metric(stem, text, "gauge" if stem == name else "counter")
            for name, text in metrics.items()
            for stem in [name.removesuffix("_total")]
        }
        for sample in samples:
            labels = {name: printable_lines(text) for name, text in sample.labels.items()}
            self._of[sample.name].add_sample(sample.name, labels, sample.value)

    def collect(self) -> Iterable[Metric]:
        return self._of.values()


def exposition_of(samples: Iterable[Sample], metrics: Metrics) -> str:
    """Return all samples under their metrics, in the order of ``metrics``.

    Raises:
        KeyError: a sample's metric is not declared.
    """
    return generate_latest(_Families(samples, metrics)).decode()

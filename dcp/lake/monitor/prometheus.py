"""Prometheus' text format: samples of declared metrics, as one exposition.

Of what is not printable the format escapes a line feed only. The rest a reader, or a terminal, may
mistake (some end at a NUL), so labels have that escaped as for people.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.printable import printable_lines

Metrics = Mapping[str, tuple[str, str]]
"""Name of a metric -> its type (gauge, counter) and what it means."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def __str__(self) -> str:
        """Return its line."""
        labels = ",".join(
            f'{name}="{printable_lines(text).translate(_ESCAPED)}"' for name, text in self.labels
        )
        return f"{self.name}{{{labels}}} {self.value:.15g}"


def exposition_of(samples: Iterable[Sample], metrics: Metrics) -> str:
    """Return all samples under their metrics, in the order of ``metrics``.

    Raises:
        KeyError: a sample of a metric that is not declared.
    """
    lines: dict[str, list[str]] = {name: [] for name in metrics}
    for sample in samples:
        lines[sample.name].append(str(sample))
    return "".join(
        "\n".join([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines[name]]) + "\n"
        for name, (kind, text) in metrics.items()
    )

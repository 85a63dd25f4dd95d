"""The present figures of a lake."""

from datetime import UTC, datetime

from dcp.lake.monitor.lake_figures import FiguresReader, LakeFigures
from dcp.lake.tables.lake_tables import LakeTables


def figures_of(lake: LakeTables) -> LakeFigures:
    """Read them as ``dcplake status`` does."""
    return FiguresReader(lake, searches=False).read(datetime.now(UTC))

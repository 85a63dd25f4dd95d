"""The present figures of a lake."""

from datetime import UTC, datetime

from dcp.lake.monitor.figures_reader import FiguresReader
from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.task_board.board_folder import BoardFolder


def figures_of(lake: LakeTables) -> LakeFigures:
    """Read them as ``dcplake status`` does."""
    board = BoardFolder(lake.identity.lake_id)
    return FiguresReader(lake, board, searches=False).read(datetime.now(UTC))

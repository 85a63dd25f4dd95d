"""Progress bars of the commands: rich's, on the terminal behind standard error.

What is printed meanwhile stands above them.
"""

import sys
from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dcp.printable import printable


class TerminalBar(Progress):
    """One bar; ``look`` says how much is done, and what to tell beside it, each time it is drawn.

    It is called in a thread of its own.
    """

    def __init__(
        self,
        title: str,
        total: int,
        look: Callable[[], tuple[int, str]],
        *,
        is_transient: bool = False,
    ) -> None:
        self._look = look
        columns = (
            _text("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _text("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        _set_up(self, columns, is_transient=is_transient)
        self.add_task(printable(title), total=total, told="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Look, and return what to draw; rich calls this."""
        for task in self.task_ids:
            done, told = self._look()
            self.update(task, completed=done, told=told)
        return super().get_renderables()


class TerminalClock(Progress):
    """A line with the time since it began, where it is not known how much is done."""

    def __init__(self, title: str) -> None:
        _set_up(self, (_text("{task.description},"), TimeElapsedColumn()), is_transient=True)
        self.add_task(printable(title), total=None)


def _set_up(bar: Progress, columns: Iterable[ProgressColumn], *, is_transient: bool) -> None:
    Progress.__init__(
        bar,
        *columns,
        console=Console(stderr=True),
        refresh_per_second=2,
        redirect_stdout=sys.stdout.isatty(),  # a file's lines stay in the file
        transient=is_transient,
    )


def _text(text_format: str) -> TextColumn:
    return TextColumn(text_format, markup=False)

"""A progress bar: rich's, on the terminal behind standard error, gone when it is stopped."""

import sys
from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dcp.printable import printable


class TerminalBar(Progress):
    """One bar; ``look`` is called each time it is drawn. What is printed meanwhile is above it."""

    def __init__(
        self, title: str, total: int | None, unit: str, look: Callable[[], tuple[int, str]]
    ) -> None:
        self._total, self._unit, self._look = total, unit, look
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            refresh_per_second=2,
            redirect_stdout=sys.stdout.isatty(),  # a file's lines stay in the file
            transient=True,
        )
        self.add_task(printable(title), total=total, told="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Look, and return what to draw; rich calls this."""
        if self._total is not None:
            for task in self.task_ids:
                done, told = self._look()
                done = min(done, self._total)  # more comes meanwhile
                amount = f"{done:,}/{self._total:,} {self._unit} {told}"
                self.update(task, completed=done, told=amount.rstrip())
        return super().get_renderables()

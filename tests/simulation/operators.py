"""People who ask the lake's driver for something, by rows of the table ``control``."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.change_log.erase_request import Erasure, key_hash
from dcp.lake.rounds.backfill_plan import NODE_CHOICES
from dcp.lake.run.driver_backfills import requested_backfill
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.printable import number_ranges
from tests.lake.watched_lake import WatchedLake
from tests.simulation.faults import Counts, Options

ASKED: Final = (
    RequestAction.PAUSE,
    RequestAction.PAUSE,
    RequestAction.RESUME,
    RequestAction.RESYNC,
    RequestAction.RESYNC,
    RequestAction.BACKFILL,
    RequestAction.BACKFILL,
    RequestAction.CANCEL,
    RequestAction.ERASE,
    RequestAction.ERASE,
)


class Operators:
    """Those of one lake; ``open_lake`` opens it."""

    def __init__(
        self,
        open_lake: Callable[[], LakeTables],
        lake: WatchedLake,
        options: Options,
        random: Random,
        counts: Counts,
    ) -> None:
        self._open, self._lake, self._options = open_lake, lake, options
        self._random, self._counts = random, counts
        self._is_calm = False

    def ask(self) -> None:
        """Ask for something, if that is drawn."""
        if self._random.random() >= self._options.driver.get("request", 0.0) or self._is_calm:
            return
        action = self._random.choice(ASKED)
        if action == RequestAction.CANCEL:
            self._cancel()
            return
        options: dict[str, Any] = {}
        vbuckets = (
            self._some_vbuckets()
            if action in (RequestAction.RESYNC, RequestAction.BACKFILL)
            else None
        )
        if action == RequestAction.BACKFILL:
            self._write(requested_backfill(vbuckets, self._random.choice(NODE_CHOICES)))
            return
        if action == RequestAction.ERASE:
            keys = self._random.choices(
                [f"key-{n}" for n in range(self._options.keys)], k=self._random.randint(1, 2)
            )
            keeps_out = self._random.random() < 0.3
            options = Erasure(DOCS.collection, frozenset(map(key_hash, keys)), keeps_out).options()
        ranges = None if vbuckets is None else number_ranges(vbuckets)
        self._write(ControlRequest.new(action, ranges, options))

    def _some_vbuckets(self) -> list[int] | None:
        every = range(self._options.vbuckets)
        chosen = [vbucket for vbucket in every if self._random.random() < 0.5]
        return chosen or None

    def _cancel(self) -> None:
        requests = Control(self._open()).requests()
        if requests:
            chosen = self._random.choice([each for each in requests if each.is_open] or requests)
            Control(self._open()).write(
                ControlRequest(id=chosen.id, action=RequestAction.CANCEL, who="operator@host"),
                RequestState.REQUESTED,
            )

    def _write(self, request: ControlRequest) -> None:
        Control(self._open()).write(request, RequestState.REQUESTED)

    def calm(self) -> None:
        """Let rounds go on; nobody asks for anything, or cancels that, from then on."""
        self._is_calm = True
        # A resume that is there may be one that somebody has cancelled, and no driver has seen.
        if any(each.action == RequestAction.PAUSE for each in Control(self._open()).requests()):
            self._write(ControlRequest.new(RequestAction.RESUME, None, {}))

    def count(self) -> None:
        """Count what became of the requests; when all is calm, none waits.

        Raises:
            AssertionError: one does.

        """
        for request in Control(self._open()).requests():
            is_answered = not request.is_open and not request.is_to_be_cancelled
            assert is_answered, f"P6: nobody answered the request {request}, or its cancel"
            self._counts.add(f"{request.action} {request.state}")

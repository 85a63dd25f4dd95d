"""How far streams are while Spark works, as lines in a log, told by a thread of its own."""

from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import Final

from dcp.cli.terminal.output import say
from dcp.lake.log.progress import Done, RoundProgress

_TELL_SECONDS: Final = 10.0


class SeqnoLines:
    """A line every ten seconds; none where the tasks are on other machines."""

    def __init__(self) -> None:
        """Tell nothing yet."""
        self._stop = Event()
        self._teller: Thread | None = None

    def show(self, name: str, told: str, seqnos: int, progress: RoundProgress | None) -> None:
        """Begin to tell how far ``name`` is."""
        if progress is not None:
            self._stop = Event()
            self._teller = Thread(
                target=_tell, args=(name, seqnos, progress, self._stop), daemon=True
            )
            self._teller.start()

    def take_away(self) -> None:
        """Tell no more; harmless where nothing is told."""
        self._stop.set()
        if self._teller is not None:
            self._teller.join()
            self._teller = None


def _tell(name: str, seqnos: int, progress: RoundProgress, stop: Event) -> None:
    begin = monotonic()
    while not stop.wait(_TELL_SECONDS):
        done, seconds = progress.done(), monotonic() - begin
        a_second = done.seqnos / seconds
        to_go = seqnos - done.seqnos  # none where writes go on meanwhile
        of = f" of {seqnos:,}" if to_go > 0 else ""
        left = f", {to_go / a_second:,.0f} s left" if to_go > 0 and a_second else ""
        with suppress(BrokenPipeError):  # the command's own next line ends it
            say(
                f"{name}: {done.seqnos:,}{of} seqnos, {a_second:,.0f} a second, "
                f"{megabytes_text(done, seconds)}{left}"
            )


def megabytes_text(done: Done, seconds: float) -> str:
    """Return how fast the frames came."""
    return f"{done.frame_bytes / 1e6 / seconds:,.1f} MB/s"

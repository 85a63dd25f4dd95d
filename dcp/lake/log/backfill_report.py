"""Reports how far a backfill is, for people and machines."""

from dataclasses import asdict, dataclass
from typing import Any

from dcp.lake.log.round_plan import LeftOut, left_out_lines


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The progress of a backfill.

    Only the process that carries it out knows more than its vbuckets: ``documents``,
    ``frame_bytes`` and ``seqnos`` are what it has read in ``seconds``, ``seqnos_left`` what the
    nodes still hold for it. ``waiting_for`` are vbuckets that cannot be read now.
    """

    id: str
    vbuckets: int
    done: int
    documents: int = 0
    frame_bytes: int = 0
    seqnos: int = 0
    seqnos_left: int = 0
    seconds: float = 0.0
    waiting_for: tuple[LeftOut, ...] = ()

    @property
    def documents_per_second(self) -> float:
        """Its mean speed."""
        return self.documents / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at this speed; None where nothing was read yet."""
        return self.seqnos_left * self.seconds / self.seqnos if self.seqnos else None

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {
            **asdict(self),
            "documents_per_second": round(self.documents_per_second, 1),
            "seconds_left": self.seconds_left,
        }

    def __str__(self) -> str:
        told = f"backfill {self.id}: {self.done} of {self.vbuckets} vbuckets"
        if self.seconds:
            told += (
                f", {self.documents:,} documents, {self.documents_per_second:,.0f} documents/s, "
                f"{self.frame_bytes / 1e6 / self.seconds:,.1f} MB/s"
            )
        if self.seconds_left is not None:
            told += f", {self.seconds_left:,.0f} s left"
        return "\n".join([told, *left_out_lines(self.waiting_for)])

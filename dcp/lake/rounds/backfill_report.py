"""Reports how far a backfill is, and estimates one, for people and machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import LeftOut, left_out_lines
from dcp.lake.tables.records import plain


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The progress of a backfill.

    Only the process that carries it out knows the figures beside those of vbuckets.
    """

    id: str
    vbuckets: int
    done: int
    documents: int = 0
    """Read in `seconds`, like `frame_bytes` and `seqnos`."""
    frame_bytes: int = 0
    seqnos: int = 0
    seqnos_left: int = 0
    """The nodes still hold so much for it."""
    seconds: float = 0.0
    waiting_for: tuple[LeftOut, ...] = ()
    """The vbuckets that cannot be read now."""

    @property
    def documents_per_second(self) -> float:
        return self.documents / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at this speed; None if nothing was read yet."""
        return self.seqnos_left * self.seconds / self.seqnos if self.seqnos else None

    def to_json(self) -> dict[str, Any]:
        return {
            **plain(self),
            "documents_per_second": round(self.documents_per_second, 1),
            "seconds_left": self.seconds_left,
        }

    def __str__(self) -> str:
        told = f"backfill {self.id}: {self.done} of {self.vbuckets} vbuckets"
        if self.seconds:
            told += (
                f", {self.documents:,} documents, {self.documents_per_second:,.0f} documents/s, "
                f"{self.frame_bytes / 1e6 / self.seconds:,.2f} MB/s"
            )
        if self.seconds_left is not None:
            told += f", {self.seconds_left:,.0f} s left"
        return "\n".join([told, *left_out_lines(self.waiting_for)])


@dataclass(frozen=True, slots=True)
class BackfillEstimate:
    vbuckets: int
    seqnos: Annotated[Mapping[NodeAddress, int], "nodes"]
    """By node, the most documents that it can hold. The lake's rows and the seqnos above them tell;
    without a lake, the high seqnos.
    """
    bytes_per_document: float | None
    """The mean of the tables' rows as frames; None: there are none."""
    bytes_per_second: float | None
    left_out: tuple[LeftOut, ...]
    """The vbuckets that could not begin now."""

    @property
    def documents(self) -> int:
        return sum(self.seqnos.values())

    @property
    def frame_bytes(self) -> float | None:
        return self.bytes_per_document and self.documents * self.bytes_per_document

    @property
    def seconds(self) -> float | None:
        return (
            self.frame_bytes and self.bytes_per_second and self.frame_bytes / self.bytes_per_second
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **plain(self),
            "documents": self.documents,
            "bytes": self.frame_bytes,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        told = f"backfill of {self.vbuckets} vbuckets: at most {self.documents:,} documents"
        if self.frame_bytes:
            told += f", about {self.frame_bytes / 1e6:,.1f} MB"
        if self.seconds:
            told += f", {self.seconds:,.0f} s at {(self.bytes_per_second or 0) / 1e6:g} MB/s"
        nodes = [f"  {node}: {seqnos:,} documents" for node, seqnos in self.seqnos.items()]
        return "\n".join([told, *nodes, *left_out_lines(self.left_out)])

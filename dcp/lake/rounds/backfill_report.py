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
    """The work of a backfill, estimated before it begins.

    ``seqnos`` are what each node holds of it: as many documents as it can have, by the rows of the
    lake's tables and the seqnos above these; without them its high seqnos.
    ``bytes_per_document`` is the mean of the tables' rows as frames; None: there are none.
    ``left_out`` are vbuckets that could not begin now.
    """

    vbuckets: int
    seqnos: Annotated[Mapping[NodeAddress, int], "nodes"]
    bytes_per_document: float | None
    bytes_per_second: float | None
    left_out: tuple[LeftOut, ...]

    @property
    def documents(self) -> int:
        """The documents that it reads at most."""
        return sum(self.seqnos.values())

    @property
    def frame_bytes(self) -> float | None:
        """The bytes that these are, as far as the lake tells."""
        return self.bytes_per_document and self.documents * self.bytes_per_document

    @property
    def seconds(self) -> float | None:
        """The time that it takes at the rate given."""
        return (
            self.frame_bytes and self.bytes_per_second and self.frame_bytes / self.bytes_per_second
        )

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
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

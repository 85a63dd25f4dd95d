"""A producer's ROLLBACK answer to a stream request, as a lake stores it.

It is stored in the vbucket's position row until the next plan has begun a new epoch for it.
"""

from dataclasses import dataclass

from dcp.types import FailoverLog, require_unsigned


@dataclass(frozen=True, slots=True)
class RollbackOrder:
    """A refused request, the seqno to go back to, and the server's log."""

    from_seqno: int
    """The seqno of the refused request."""
    to_seqno: int
    from_vb_uuid: int
    """The branch of the refused request."""
    failover_log: FailoverLog | None = None
    """None if the server did not tell it."""

    def __post_init__(self) -> None:
        for name in ("from_vb_uuid", "from_seqno", "to_seqno"):
            require_unsigned(name, getattr(self, name))
        if self.to_seqno > self.from_seqno:
            raise ValueError(
                f"rollback order: found seqno {self.to_seqno}, expected at most the requested "
                f"{self.from_seqno}"
            )

    @property
    def is_for_unknown_branch(self) -> bool:
        """True if the server's log lacks the branch that the request named."""
        log = self.failover_log
        return log is not None and all(entry.vb_uuid != self.from_vb_uuid for entry in log.entries)

    def __str__(self) -> str:
        return (
            f"the producer ordered a rollback from seqno {self.from_seqno} "
            f"(branch {self.from_vb_uuid:016x}) to {self.to_seqno}"
        )

"""The report of a committed round: rows, bytes and the outcome of each vbucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from dcp.lake.rounds.round_plan import LeftOut, left_out_lines
from dcp.lake.tables.round_record import UNDECODABLE, Outcome, VbucketReport
from dcp.lake.task_board.task_stats import flow_control_text
from dcp.printable import Shown, number_ranges
from dcp.records import Record

_WORTH_A_LINE: Final = 0.05


@dataclass(frozen=True, slots=True)
class RoundReport(Record, Shown):
    round: int
    version: int
    seconds: float
    vbuckets: tuple[VbucketReport, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def rows(self) -> Annotated[int, "rows"]:
        return sum(report.rows for report in self.vbuckets)

    @property
    def frame_bytes(self) -> Annotated[int, "bytes"]:
        return sum(report.frame_bytes for report in self.vbuckets)

    @property
    def escaped_keys(self) -> Annotated[int, "escaped_keys"]:
        """Rows whose key cannot be stored as a STRING unchanged (`dcp.lake.receive.keys`)."""
        return sum(report.escaped_keys for report in self.vbuckets)

    @property
    def undecodable_values(self) -> Annotated[int, "undecodable_values"]:
        """Rows whose value is stored as it was sent (`dcp.lake.tables.schema`, ``datatype``)."""
        return sum(report.undecodable_values for report in self.vbuckets)

    @property
    def window_full(self) -> Annotated[float, "window_full"]:
        """The share of the time in which nodes could not send; the mean over the vbuckets."""
        return round(sum(window_full_shares(self.vbuckets).values()), 3)

    @property
    def bottleneck(self) -> Annotated[str, "bottleneck"]:
        """The stage that full windows waited for most; empty if unknown."""
        shares = window_full_shares(self.vbuckets)
        return max(filter(None, shares), key=lambda stage: shares[stage], default="")

    @property
    def all_left_out(self) -> tuple[LeftOut, ...]:
        """Every vbucket that did not advance, with the reason.

        A rolled back vbucket is not among them: the next round begins its new epoch.
        """
        failed = (
            LeftOut(report.vbucket, report.reason, report.detail)
            for report in self.vbuckets
            if report.reason and report.outcome is not Outcome.ROLLBACK
        )
        return (*self.left_out, *failed)

    def __str__(self) -> str:
        counts = [
            f"{outcome.replace('_', ' ')} {number_ranges(vbuckets)}"
            for outcome in Outcome
            if (vbuckets := [item.vbucket for item in self.vbuckets if item.outcome is outcome])
        ]
        head = (
            f"round {self.round} (changes version {self.version}): {self.rows:,} rows, "
            f"{self.frame_bytes:,} bytes in {self.seconds:.1f} s; vbuckets: {'; '.join(counts)}"
        )
        lines = [head, *left_out_lines(self.all_left_out)]
        again = [each for each in self.vbuckets if each.rollback_seqno == 0 and each.target_seqno]
        if documents := sum(each.target_seqno for each in again):
            lines.append(
                f"  ordered back to 0: vbuckets {number_ranges(each.vbucket for each in again)}: "
                f"they hold at most {documents:,} documents; dcplake plan shows what is read again"
            )
        if self.escaped_keys:
            lines.append(
                f"  {self.escaped_keys:,} rows have a key that is not UTF-8 (or begins with \\x): "
                "the column key has it in hexadecimal, key_bytes as it is"
            )
        if self.undecodable_values:
            lines.append(f"  {self.undecodable_values:,} {UNDECODABLE}")
        if self.window_full >= _WORTH_A_LINE:
            lines.append(f"  {flow_control_text(self.window_full, self.bottleneck)}")
        return "\n".join(lines)


def window_full_shares(reports: Sequence[VbucketReport]) -> dict[str, float]:
    """By stage waited for, return the share of the time in which nodes could not send.

    It is the mean over the vbuckets. An unknown stage is the empty text.
    """
    shares: dict[str, float] = {}
    for report in reports:
        share = report.window_full / len(reports)
        shares[report.bottleneck] = shares.get(report.bottleneck, 0.0) + share
    return shares

"""Parts of the text of ``dcplake status``."""

from collections.abc import Sequence
from datetime import datetime

from dcp.lake.change_log.control import BACKFILL, RESYNC, Action
from dcp.lake.change_log.last_contact import LastContact
from dcp.lake.tables.round_record import VbucketReport
from dcp.printable import age_text, number_ranges, printable


def age_lines(
    at: datetime, contact: LastContact | None, round_at: datetime | None, apply_at: datetime | None
) -> list[str]:
    if contact is None:
        return ["  no contact with the cluster yet"]
    ages = [
        f"last {what} {age_text((at - time).total_seconds())} ago"
        for what, time in (("round", round_at), ("apply", apply_at))
        if time is not None
    ]
    lines = [f"  {', '.join([contact.told(at), *ages])}"]
    if contact.is_overdue(at):
        lines.append("    so the lag is unknown; dcplake run goes on from there")
    elif contact.behind:
        lines[0] += f"; {contact.behind:,} seqnos were to be read then"
    return lines


def stuck_lines(stuck: Sequence[VbucketReport]) -> list[str]:
    by_reason: dict[str, list[VbucketReport]] = {}
    for report in stuck:
        by_reason.setdefault(report.reason, []).append(report)
    return [
        f"  stand still: vbuckets {number_ranges(each.vbucket for each in reports)}: {reason} "
        f"({reports[0].vbucket}: {printable(reports[0].detail)})"
        for reason, reports in by_reason.items()
    ]


def request_line(each: Action) -> str:
    has_vbuckets = each.action in (BACKFILL, RESYNC)
    of = f" vbuckets {each.vbuckets or 'all'};" if has_vbuckets else ""
    waits = f"; waits: {printable(each.detail)}" if each.detail else ""
    return f"  {each.action} {each.id}, {each.state}:{of} asked for by {printable(each.who)}{waits}"

"""Options that say what a backfill reads, and from where."""

from typing import Annotated

from typer import BadParameter, Option

from dcp.cli.options.values import vbucket_ranges
from dcp.lake.rounds.backfill_plan import (
    LEAST_MEGABYTES_PER_SECOND,
    MOST_MEGABYTES_PER_SECOND,
    NODE_CHOICES,
)


def _nodes(text: str) -> str:
    if text not in NODE_CHOICES:
        raise BadParameter(f"found {text!r}, expected {' or '.join(NODE_CHOICES)}")
    return text


Vbuckets = Annotated[
    frozenset[int] | None, Option(parser=vbucket_ranges, metavar="0-63,70", help="which (all)")
]
From = Annotated[
    str,
    Option(
        "--from",
        parser=_nodes,
        metavar="|".join(NODE_CHOICES),
        help="read replica vbuckets, or what source.seeds names: a relay, for instance",
    ),
]
Rate = Annotated[
    float | None,
    Option(
        "--megabytes-per-second",
        min=LEAST_MEGABYTES_PER_SECOND,
        max=MOST_MEGABYTES_PER_SECOND,
        metavar="N",
        help="the most that all tasks of a backfill read together (no limit)",
    ),
]

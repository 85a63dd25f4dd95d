"""The window that each stream may have at least, between a wish and its answer."""

from collections.abc import Sequence

import pytest

from dcp.client.stream_window_sizes import StreamWindowSizes


@pytest.mark.parametrize(
    ("first", "steps", "expected"),
    [
        (0, [], None),
        (8000, [], 8000),
        (8000, ["refused at first"], None),
        (8000, [5000], 5000),
        (8000, [9000], 8000),
        (8000, [9000, True], 9000),
        (8000, [9000, False], 8000),
        (8000, [5000, True], 5000),
        (8000, [5000, False], 8000),
        (8000, [0], 8000),
        (8000, [0, True], None),
        (8000, [0, 6000, True], 6000),
        (8000, [0, 6000, True, False], None),
        (8000, [5000, 9000, True], 5000),
        (8000, [5000, 9000, True, True], 9000),
        (8000, [5000, "refused at first"], 5000),
        (8000, [5000, "refused at first", False], None),
        (0, [5000], 5000),
    ],
)
def test_the_least_that_a_stream_may_have(
    first: int, steps: Sequence[int | bool | str], expected: int | None
) -> None:
    """Numbers are wishes; True and False are answers to the oldest of them."""
    sizes = StreamWindowSizes(first)
    asked: list[int] = []
    for step in steps:
        if isinstance(step, str):
            sizes.refused_at_first()
        elif isinstance(step, bool):
            sizes.answered(asked.pop(0), is_accepted=step)
        else:
            sizes.ask(step)
            asked.append(step)
    assert sizes.least_bytes == expected

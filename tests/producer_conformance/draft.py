"""A first scenario for a new recording: ``python -m tests.producer_conformance.draft FILE``.

It holds what the recording says in so many words: who logged in, each vbucket's failover logs, and
the items that streams showed. What a stream's first snapshot or one from disk shows was there when
the stream was asked for, the rest comes before the marker that announces it. What nobody was shown
is a guess at most: the rest is for the author of the scenario to write.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance_formats.case_file import CaseFile
from tests.conformance_formats.transcripts import FrameLine, MarkLine, parse_line
from tests.producer_conformance.drafted_vbucket import Raw
from tests.producer_conformance.drafter import Drafter


def draft(lines: Sequence[FrameLine | MarkLine]) -> list[Raw]:
    """Return the draft of a recording's scenario, as its file has it."""
    whole = _drafted(lines)
    buckets = list(dict.fromkeys(whole.bucket_of.values()))
    if len(buckets) < 2:
        return [whole.finish()]
    names = {line.conn for line in lines if isinstance(line, FrameLine)}
    found = []
    for bucket in buckets:
        own = {name for name in names if whole.bucket_of.get(name, buckets[0]) == bucket}
        part = [line for line in lines if isinstance(line, MarkLine) or line.conn in own]
        found.append(_drafted(part).finish() | {"connections": sorted(own)})
    return found


def _drafted(lines: Sequence[FrameLine | MarkLine]) -> Drafter:
    drafter = Drafter()
    for line in lines:
        drafter.take(line)
    return drafter


def printed(scenario: list[Raw]) -> str:
    """Return the text of a scenario's file: a line for each step and item."""
    parts = []
    for raw in scenario:
        head = [
            f"{json.dumps(name)}: {json.dumps(raw[name])},\n" for name in raw if name != "steps"
        ]
        steps = []
        for step in raw["steps"]:
            items = ",\n  ".join(
                json.dumps(item, ensure_ascii=False) for item in step.get("items", ())
            )
            text = json.dumps({name: step[name] for name in step if name != "items"})
            steps.append(f'{text[:-1]}, "items": [\n  {items}]}}' if items else text)
        parts.append("{" + "".join(head) + '"steps": [\n' + ",\n".join(steps) + "]}")
    return "[" + ",\n".join(parts) + "]\n"


if __name__ == "__main__":
    numbered = enumerate(CaseFile.read(Path(sys.argv[1])).content, 1)
    print(printed(draft([parse_line(number, raw) for number, raw in numbered])), end="")

"""Run case files against the product's code: ``python tests/conformance.py [--producer] FILE…``.

The format of a file is recognised by its content. Every failing case is printed with what was
found and what was expected. A line per transcript counts its frames: the client's as accepted (the
same as ours) and observed (others), the server's as understood. A line per file of Aeron's cases
counts where we answer as both its drivers, and as one alone where they differ. With ``--producer``
the files are transcripts and our producer takes the server's place, in the states that a
transcript's scenario names (``docs/howto/conformance.md``) or that are drafted from what it shows:
every frame of the server is compared with ours, up to the first difference of each connection, and
those that were not compared are counted with the reason. The last line is ``N passed, M failed``;
the exit code is 1 when any failed. A file that cannot be read or recognised, or that holds no case,
is a failure.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a script: the repository's root is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conformance_formats.aeron_cases import AeronCases
from tests.conformance_formats.case_file import CaseFile, CaseResult, Format
from tests.conformance_formats.golden_frames import GoldenFrames
from tests.conformance_formats.policy_cases import PolicyCases
from tests.conformance_formats.rollback_cases import RollbackCases
from tests.conformance_formats.transcripts import Transcripts
from tests.producer_conformance.producer_transcripts import ProducerTranscripts

FORMATS: tuple[Format, ...] = (
    GoldenFrames(),
    RollbackCases(),
    AeronCases(),
    PolicyCases(),
    Transcripts(),
)
"""What can be run; the first that recognises a file runs it."""


PRODUCER_FORMATS: tuple[Format, ...] = (ProducerTranscripts(),)
"""What can be run with ``--producer``."""


def run_file(path: Path, formats: Sequence[Format] = FORMATS) -> Iterator[CaseResult]:
    """Yield the results of all cases in a file; at least one."""
    try:
        file = CaseFile.read(path)
    except (OSError, ValueError) as error:
        yield CaseResult("file", (f"cannot be read: {error}",))
        return
    found = next((known for known in formats if known.recognises(file)), None)
    if found is None:
        names = ", ".join(known.name for known in formats)
        yield CaseResult("file", (f"found an unknown format, expected one of: {names}",))
        return
    cases = 0
    try:
        for result in found.run(file):
            cases += 1
            yield result
    except Exception as error:
        yield CaseResult("file", (f"{found.name}: {type(error).__name__}: {error}",))
        return
    if not cases:
        yield CaseResult("file", (f"{found.name}: found no case, expected at least one",))


def main(arguments: Sequence[str]) -> int:
    """Run the files and return the exit code."""
    is_producer = arguments[:1] == ["--producer"]
    formats = PRODUCER_FORMATS if is_producer else FORMATS
    paths = arguments[is_producer:]
    if paths[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if not paths or paths[0].startswith("-"):
        print("usage: python tests/conformance.py [--producer] FILE…", file=sys.stderr)
        return 2
    passed = failed = 0
    for argument in paths:
        tally: Counter[str] = Counter()
        for result in run_file(Path(argument), formats):
            tally.update(result.tally)
            if not result.failures:
                passed += 1
                continue
            failed += 1
            print(f"FAILED {argument}: {result.name}")
            for failure in result.failures:
                print(f"    {failure}")
        if tally:
            counts = ", ".join(f"{count} {name}" for name, count in tally.items())
            print(f"{argument}: {counts}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

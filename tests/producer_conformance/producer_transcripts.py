"""Transcripts of a data server, each played to our producer in the server's place."""

from collections.abc import Iterator
from dataclasses import replace

from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.transcripts import Transcripts, parse_line
from tests.producer_conformance.draft import draft
from tests.producer_conformance.player import Player
from tests.producer_conformance.scenario_file import scenarios_in, scenarios_of


class ProducerTranscripts:
    """Recorded conversations with their scenarios; one case per connection."""

    name = "transcript for the producer"

    def recognises(self, file: CaseFile) -> bool:
        """Whether it is a transcript, by its content."""
        return Transcripts().recognises(file)

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per connection.

        Raises:
            ValueError: a line that is no transcript's; a scenario that is none.
        """
        content = file.content if isinstance(file.content, list) else [file.content]
        lines = [parse_line(number, line) for number, line in enumerate(content, 1)]
        scenarios = scenarios_of(file.path)
        for scenario in scenarios or scenarios_in(draft(lines)):
            for result in Player(lines, scenario).run():
                yield result if scenarios else _of_a_draft(result)


def _of_a_draft(result: CaseResult) -> CaseResult:
    """Say that a difference may be the draft's fault."""
    note = "the recording has no scenario, and a drafted one does not explain this"
    return replace(result, failures=tuple(f"{each} ({note})" for each in result.failures))

"""Transcripts of a data server, each repeated with our producer in the server's place."""

from collections.abc import Iterator

from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.transcripts import Transcripts
from tests.producer_conformance.conversation import Conversation
from tests.producer_conformance.rehearsal import rehearse


class ProducerTranscripts:
    """Recorded conversations; one case per connection."""

    name = "transcript for the producer"

    def recognises(self, file: CaseFile) -> bool:
        """Whether it is a transcript, by its content."""
        return Transcripts().recognises(file)

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per connection."""
        lines = file.content if isinstance(file.content, list) else [file.content]
        yield from rehearse(Conversation.read(lines))

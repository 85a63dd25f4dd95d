"""``dcplake serve`` as a process of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.own_process import OwnProcess


class Serving(OwnProcess):
    """A running ``dcplake serve``."""

    def __init__(self, user: str, *words: str) -> None:
        super().__init__(os.environ, "serve", "--user", user, *words)


@contextmanager
def serving(user: str, *words: str) -> Iterator[list[str]]:
    """Run it on free ports with eight vbuckets; yields its seeds, and lets it stop in the end."""
    process = Serving(user, "--vbuckets", "8", "--port", "0", *words)
    code = 1
    try:
        yield process.seeds
    finally:
        code = process.stop()
    assert code == 0

"""``dcplake relay`` as a process of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.cli.own_process import OwnProcess
from tests.client.drained import USERS


class Upstream(Protocol):
    """A cluster, in this process or in one of its own."""

    @property
    def seeds(self) -> Sequence[str]: ...


class Relaying(OwnProcess):
    """A running ``dcplake relay``."""

    def __init__(self, cluster: Upstream, folder: Path, *more: str) -> None:
        (user,) = USERS
        words = ["relay", "--upstream", ",".join(cluster.seeds), "--user", user]
        words += ["--data", str(folder), "--listen", "127.0.0.1:0", *more]
        super().__init__({**os.environ, "DCPLAKE_PASSWORD": USERS[user]}, *words)

    @property
    def seed(self) -> str:
        return self.seeds[0]


@contextmanager
def relaying(cluster: Upstream, folder: Path, *more: str) -> Iterator[Relaying]:
    process = Relaying(cluster, folder, *more)
    try:
        yield process
    finally:
        process.kill()

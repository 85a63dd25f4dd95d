"""``dcplake serve`` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(user: str, *words: str) -> Iterator[list[str]]:
    """Run it on free ports with eight vbuckets; yields its seeds, and lets it stop in the end."""
    options = ["--vbuckets", "8", "--port", "0", "--user", user, *words]
    command = [sys.executable, "-m", "dcp.cli.main", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["seeds"]
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0

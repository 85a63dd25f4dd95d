"""Processes of Spark's own: masters, workers, servers of Spark Connect."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dcp.lake.spark.java import find_java_home

BIN: Final = Path(sys.executable).parent
SECONDS: Final = 300.0
ON_LOOPBACK: Final = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}


def activated_environment() -> dict[str, str]:
    """Return what an activated environment has, on loopback."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return os.environ | ON_LOOPBACK | {"PATH": path, "JAVA_HOME": str(find_java_home())}


@contextmanager
def spark_process(
    log: Path, ready: str, *words: str, environment: Mapping[str, str]
) -> Iterator[re.Match[str]]:
    """Run ``words`` of Spark's ``bin``; give what it logs when it is ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / words[0], *words[1:]],
            cwd=log.parent,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + SECONDS
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()  # a worker ends its executors
        process.wait(SECONDS)


def options_of(conf: Mapping[str, str]) -> list[str]:
    """Return the options of ``spark-submit`` for these settings."""
    return [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]

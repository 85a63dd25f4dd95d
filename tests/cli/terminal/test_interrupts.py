"""Real processes that are signalled: while they work, hang, start Spark, or only exit."""

import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import psutil
import pytest

from dcp.cli.terminal import interrupts
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.client.drained import PATIENCE_SECONDS, wait_for
from tests.lake.receiving import settings_for

WORKING = """
import sys, time
from dcp.cli import main
from dcp.cli.terminal import interrupts

interrupts._END_SECONDS = 0.5

def work():
    print("ready", flush=True)
    time.sleep(600)
    return 0

sys.exit(main.run_to_exit_code("run", work, as_json=False))
"""
DEAF = WORKING.replace(
    "    time.sleep(600)",
    """    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            pass  # lost, as what is raised in a destructor""",
)
READING = """
import sys, time
from typing import Annotated
from typer import Option
from dcp.cli import main

def read(_):
    print("ready", flush=True)
    time.sleep(600)

def run(*, words: Annotated[str, Option(parser=read)]):
    return 0

application = main.application_of("run", run, "")
main.command = lambda _: application
sys.exit(main.main(["run", "--words", "x"]))
"""
PRODUCER = """
import os, subprocess, sys, threading
from pathlib import Path
from dcp.cli import main
from dcp.cli.demo import serve_process

class Silent(subprocess.Popen):
    def __init__(self, _, **options):
        super().__init__(["sleep", "600"], **options)
        threading.Timer(0.5, lambda: print("ready", flush=True)).start()

def work():
    subprocess.Popen = Silent
    with serve_process.DemoProducer(Path(os.devnull)):
        return 0

serve_process._READY_SECONDS = 600
sys.exit(main.run_to_exit_code("run", work, as_json=False))
"""
LOADING = """
import sys, time

class Slow:
    def find_spec(self, name, *_):
        if name == "typer":
            print("ready", flush=True)
            time.sleep(1)

sys.meta_path.insert(0, Slow())
sys.argv = ["dcplake", "doctor"]
from dcp.cli.console import main
sys.exit(main())
"""
LISTING = LOADING.replace('"doctor"', '"--help"')
EXITING = """
import atexit, sys, time
from dcp.cli import main

def linger():
    print("ready", flush=True)
    time.sleep(600)

atexit.register(linger)
sys.argv = ["dcplake", "doctor", "--nonsense"]
sys.exit(main.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (WORKING, 130, "dcplake run: stopped"),
        (DEAF, 130, "dcplake run: stopped"),
        (READING, 130, "dcplake run: stopped"),
        (PRODUCER, 130, "dcplake run: stopped"),
        (LOADING, 130, "dcplake doctor: stopped"),
        (LISTING, 130, "dcplake: stopped"),
        (EXITING, 2, "dcplake doctor: No such option: --nonsense"),
    ],
    ids=[
        "working",
        "deaf",
        "reading its words",
        "starting a producer",
        "loading",
        "listing",
        "exiting",
    ],
)
def test_a_signalled_process_ends_with_its_line_and_code(
    script: str, code: int, said: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            pass
        process.send_signal(number)
        _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert [line.startswith(said) for line in error.splitlines()] == [True]


def test_a_run_that_is_stopped_while_spark_starts_says_so(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=2)) as cluster:
        cluster.set(b"key", b"1")
        source = settings_for(cluster, tmp_path).source
        values = {
            "source.seeds": ",".join(source.seeds),
            "source.username": source.username,
            "source.password_file": source.password_file,
            "lake.root": str(tmp_path / "lake"),
        }
        words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "dcp.cli.main", "run", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                children = psutil.Process(process.pid).children
                wait_for("a JVM", lambda: "java" in [each.name() for each in children()])
                began = monotonic()
                process.terminate()
                _, error = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                process.kill()
    assert (process.returncode, error) == (130, "dcplake run: stopped\n")
    assert monotonic() - began < interrupts._END_SECONDS, (
        "the interrupt ended it, not what ends deaf ones"
    )

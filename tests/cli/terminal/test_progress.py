"""A bar on a terminal takes nothing of what is printed meanwhile into it, nor reads markup."""

import os
import pty
import subprocess
import sys

LINE = "applied: [red]docs[/] " + "x" * 200
PROGRAM = f"""
from time import sleep
from dcp.cli.terminal.output import say
from dcp.cli.terminal.progress import display
with display("[b]round 7", 200, "seqnos", lambda: (50, "1.0 MB/s")):
    sleep(1.5)
    say({LINE!r})
"""


def test_a_bar_on_a_terminal_leaves_the_lines_of_a_file_alone() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    told, _ = process.communicate(timeout=60)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert told.decode() == f"{LINE}\n"
    assert "[b]round 7" in shown and "50/200 seqnos 1.0 MB/s" in shown

"""The ``dcplake`` script: lets signals wait until the program is loaded, and runs it.

What it imports to load the program takes some tenths of a second.
"""

import signal


def main() -> int:
    """Run the command of this process; return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    from dcp.cli.main import main as run  # which hears them

    return run()

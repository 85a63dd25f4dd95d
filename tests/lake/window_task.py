"""A process with a place in a register of windows: `test_executor_windows` tells it what to do."""

import json
import sys
from pathlib import Path

from dcp.lake.window_register import WindowRegister
from dcp.protocol.window_policies import Policy, PolicySettings


def main(folder: Path) -> None:
    """Obey commands of one line each until there are no more."""
    policy = PolicySettings(policy=Policy.AGGRESSIVE)
    register = WindowRegister(folder, policy, 1_200_000_000)
    for line in sys.stdin:
        command, *names = json.loads(line)
        if command == "declare":
            answer = dict(register.declare(names))
        elif command == "look":
            answer = dict(register.look())
        elif command == "changes":
            answer = {"changes": register.changes}
        else:
            register.leave()
            answer = {}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

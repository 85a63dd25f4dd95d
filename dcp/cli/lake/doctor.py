"""``dcplake doctor``: tries each step from the configuration to a stream, and says what fails."""

from time import time
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.errors import DcplakeError
from dcp.printable import printable

if TYPE_CHECKING:
    from dcp.client.probe import ProbedCluster
    from dcp.lake.config.settings import Settings
    from dcp.lake.run.set_up_check import CheckedStep, Finding, Tell

EPILOG: Final = """\
Takes the way of a run, with a run's connections, up to the first rows of one vbucket. It writes
nothing, but for a small file in the object store of a lake, which it removes. The first step that
fails ends it, with what to do, and with the exit code of a run that fails there.
docs/howto/doctor.md says more of each step."""

_CLOCK_SECONDS: Final = 5.0
_CLOCK_TIMEOUT_SECONDS: Final = 10.0


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="one JSON object per step")] = False,
) -> int:
    """Try each step, and print it when it is over."""
    from dcp.lake.run.check_up import check_lake, check_settings, check_source

    tell = _tell_json if json else _tell
    settings = check_settings(lambda: settings_from(config, lake, overrides), tell)
    cluster = check_source(settings, tell)
    _check_clock(settings, cluster, tell)
    check_lake(settings, cluster, tell)
    return 0


def _tell(step: "CheckedStep") -> None:
    from dcp.lake.run.set_up_check import StepState

    # Why a step failed is the command's error, on standard error.
    found = "" if step.state is StepState.FAILED else printable(step.found)
    say(f"{step.state:<7}  {step.name:<15}  {step.seconds:6.2f} s  {found}".rstrip())


def _tell_json(step: "CheckedStep") -> None:
    say_json(step.to_json())


def _check_clock(settings: "Settings", cluster: "ProbedCluster", tell: "Tell") -> None:
    """Compare the clocks; a node that does not tell its time to this user is no failure."""
    from dcp.lake.run.set_up_check import checking

    with checking("clock", tell) as finding:
        try:
            _compare_clocks(settings, cluster, finding)
        except DcplakeError as error:
            finding.say(f"not told: {error}")


def _compare_clocks(settings: "Settings", cluster: "ProbedCluster", finding: "Finding") -> None:
    """Compare a node's clock, of which it tells whole seconds, with this machine's.

    Raises:
        SourceError: the node does not tell.
    """
    from dcp.client.kv.kv_connection import signed_in, stat_number
    from dcp.lake.receive.source_access import source_access

    node = str(cluster.map.addresses[0])
    connection_settings = source_access(settings).consumer.connection
    credentials = settings.source.credentials()
    with signed_in(node, connection_settings, credentials, _CLOCK_TIMEOUT_SECONDS) as connection:
        before = time()
        told = stat_number(connection.statistics(""), "time")
        after = time()
    if told is None:
        finding.say(f"{node} does not tell its time")
        return
    ahead = max(told - after, min(0.0, told + 1 - before))
    finding.say(f"{node} is {_difference(ahead)}", seconds_ahead=round(ahead, 3))
    if abs(ahead) > _CLOCK_SECONDS:
        finding.warnings.append("set both by NTP: lags in seconds are wrong by as much")


def _difference(ahead_seconds: float) -> str:
    if not ahead_seconds:
        return "within a second of this machine"
    direction = "ahead of" if ahead_seconds > 0 else "behind"
    return f"{abs(ahead_seconds):.0f} s {direction} this machine"

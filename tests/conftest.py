"""Fixtures of all tests: one Spark session for a process, and Hypothesis without a clock."""

import gc
import logging
import os
import re
from collections.abc import Generator, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.quick_spark import QUICK_CONF
from tests.simulation.report import told_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines that run tests are busy: how long one example takes says nothing. The same code is held
# against the same examples each time; `make soak` looks for new ones.
settings.register_profile(
    "dcplake", deadline=None, print_blob=True, derandomize="DCPLAKE_TEST_SEED" not in os.environ
)
settings.load_profile("dcplake")

_LONGEST: Final = (
    "airflow/test_dag_runs.py",
    "lake/run/test_stopped_drivers.py",
    "lake/run/test_side_by_side.py",
    "lake/tables/test_damaged_lakes.py",
    "relay/test_bounded_memory.py",
    "relay/test_relay_participants.py",
    "lake/quality/test_quality.py",
    "lake/spark/test_standalone_cluster.py",
    "lake/spark/test_spark_connect.py",
    "simulation/test_simulation.py",
)
"""Modules of minutes, which begin first: one process tests a module."""

_SPREAD: Final = 0.7
"""The part of the quick modules among which the slow ones are; the rest comes behind."""


gc.disable()  # until all tests are collected: they stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread modules with slow tests among the others, which begin early and end last.

    Slow tests compute, many of the others wait: side by side they use the machine's cores. And no
    process is left alone with a slow one at the end.
    """
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    slow: list[list[pytest.Item]] = []
    quick: list[list[pytest.Item]] = []
    for tests in modules.values():
        is_slow = str(tests[0].path).endswith(_LONGEST) or any(
            each.get_closest_marker("slow") for each in tests
        )
        (slow if is_slow else quick).append(tests)
    slow.sort(key=lambda tests: not str(tests[0].path).endswith(_LONGEST))
    before_each = _SPREAD * len(quick) / max(1, len(slow))
    spread = [
        *enumerate(slow),
        *((number / before_each, tests) for number, tests in enumerate(quick)),
    ]
    items[:] = [each for _, tests in sorted(spread, key=itemgetter(0)) for each in tests]


_OF_SESSION: Final = re.compile(r'\b(spark(: |"\))|new_lake\b|view: Callable)')
"""What a module takes whose tests share the Spark session of their process."""

_OF_ONE_DRIVER: Final = (
    "lake/run/test_backfill.py",
    "lake/run/test_crashes.py",
    "lake/run/test_side_by_side.py",
    "lake/run/test_stopped_drivers.py",
)
"""Modules that one process tests, since they share a driver: the fixture ``host``.

The last test of ``test_crashes`` kills it, so that module is none of `_LONGEST`: it comes last.
"""

_WITH_GREAT_EXPECTATIONS: Final = (
    "lake/quality/test_gate.py",
    "lake/quality/test_quality.py",
    "lake/quality/test_quality_suite.py",
    "lake/run/test_statement_counts.py",
)
"""Modules that one process tests, since its first import takes eight seconds of CPU."""

_WITH_AIRFLOW: Final = (
    "airflow/test_dag.py",
    "airflow/test_dag_runs.py",
    "airflow/test_first_steps.py",
)
"""Modules that one process tests, since they share an Airflow home, whose database is made once."""

_TOGETHER: Final = {
    "Airflow": _WITH_AIRFLOW,
    "one driver": _OF_ONE_DRIVER,
    "Great Expectations": _WITH_GREAT_EXPECTATIONS,
}

_WORTH_A_SESSION: Final = 8
"""If fewer modules with the session wait, those processes that have one test them sooner."""


class FewSessions(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives modules with the shared Spark session to every second process.

    Others get them when nothing else waits. The first statements of each session take half a minute
    of CPU more than later ones.
    """

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        names = (name for name, modules in _TOGETHER.items() if module.endswith(modules))
        return next(names, module)

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_session = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        fit = (
            scope
            for scope, tests in self.workqueue.items()
            if _takes_session(self.config.rootpath / next(iter(tests)).split("::")[0])
            == has_session
        )
        scope = next(fit, None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        elif not has_session and len(self.workqueue) < _WORTH_A_SESSION:
            node.shutdown()
            return
        super()._assign_work_unit(node)


@cache
def _takes_session(module: Path) -> bool:
    return _OF_SESSION.search(module.read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FewSessions | None:
    return FewSessions(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with each failure the one command that repeats it."""
    report = yield
    if report.failed:
        names = ("DCPLAKE_TEST_SEED", "DCPLAKE_TEST_SCALE")
        given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        chosen = ["-m interop"] if item.get_closest_marker("interop") else []
        examples = item.config.getoption("--hypothesis-seed", None)
        if examples is not None:
            chosen.append(f"--hypothesis-seed={examples}")
        command = " ".join([*given, ".venv/bin/python -m pytest", *chosen, f"'{item.nodeid}'"])
        report.sections.append(("repeat it with", command))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how often each fault of the simulated systems happened, of all processes' tests."""
    reports = (each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind))
    tally = told_by(each.user_properties for each in reports)
    if tally.seeds:
        terminalreporter.section("simulated systems")
        for line in tally.lines():
            terminalreporter.write_line(line)


def look_up_names_once() -> None:
    """Let py4j remember which names are packages and which are classes of Java.

    PySpark asks for the same names with each statement, and Java looks for each in all jars.
    """
    from py4j.java_gateway import JavaPackage, JVMView

    for kind in (JVMView, JavaPackage):

        def found(self: Any, name: str, look_up: Any = kind.__getattr__) -> Any:
            made = self.__dict__[name] = look_up(self, name)
            return made

        kind.__getattr__ = found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from dcp.lake.spark.session import build_session

    look_up_names_once()
    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        app_name="dcplake tests",
        master="local[2]",
        driver_memory="1500m",
        spark_log=folder / "spark.log",
        extra=QUICK_CONF | {"spark.sql.warehouse.dir": str(folder / "warehouse")},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def passwords_salted_once() -> Iterator[None]:
    """Salt each password once for thousands of clusters and clients: it takes as long as all
    else of their start. The nodes of all clusters have one password.
    """
    from dcp.protocol import credentials
    from dcp.server.bucket import auth

    slow = (auth, "_salted"), (auth, "_node_credentials"), (credentials, "pbkdf2_hmac")
    with pytest.MonkeyPatch.context() as patched:
        for module, name in slow:
            patched.setattr(module, name, cache(getattr(module, name)))
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Take back what a command's ``main`` sets up: its stream is closed when the test is over."""
    yield
    ours = logging.getLogger("dcp")
    for handler in [*ours.handlers]:
        ours.removeHandler(handler)
    for name, each in logging.root.manager.loggerDict.items():
        if name.startswith("dcp.") and isinstance(each, logging.Logger):
            each.setLevel(logging.NOTSET)

"""Fixtures of the interoperability tests: clusters, and drivers that `make interop` has built."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.interop import scenarios

FOLDER = Path(__file__).parent


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., ProducerCluster]]:
    with ExitStack() as stack:

        def make(**changed: Any) -> ProducerCluster:
            chosen: dict[str, Any] = scenarios.settings() | changed
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1100,1400"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options, Service("/usr/bin/chromedriver", log_output=str(tmp_path / "log")))
    yield browser
    browser.quit()


@pytest.fixture
def java_driver() -> list[str]:
    target = FOLDER / "java" / "target"
    _need(target / "classes" / "dcplake" / "interop" / "Driver.class")
    classpath = f"{target / 'classes'}:{target / 'lib'}/*"
    quick_start = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *quick_start, "-cp", classpath, "dcplake.interop.Driver"]


@pytest.fixture
def go_driver() -> list[str]:
    driver = FOLDER / "go" / "bin" / "driver"
    _need(driver)
    return [str(driver)]


def _need(built: Path) -> None:
    if not built.exists():
        pytest.fail(f"{built} is missing: run the tests with `make interop`, which builds it")

"""The live page of a run, and the page as a file, in a headless Chromium, light and dark."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.cluster_settings import ClusterSettings
from tests.lake.receiving import PASSWORD, PASSWORD_FILE, USER
from tests.quick_spark import QUICK_CONF, spark_conf_toml

pytestmark = pytest.mark.interop

PATIENCE_SECONDS = 180


@pytest.fixture
def config(cluster: ProducerCluster, tmp_path: Path) -> Path:
    (tmp_path / PASSWORD_FILE).write_text(PASSWORD)
    file = tmp_path / "travel.toml"
    file.write_text(
        f"[source]\nseeds = {cluster.seeds!r}\nusername = '{USER}'\n"
        f"password_file = '{tmp_path / PASSWORD_FILE}'\n[lake]\nroot = '{tmp_path / 'lake'}'\n"
        f"[round]\nminimum_interval_seconds = 1\n[spark]\nmaster = 'local[2]'\n"
        f"{spark_conf_toml(QUICK_CONF)}"
    )
    return file


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(vbuckets=4, users={USER: PASSWORD})) as cluster:
        yield cluster


def test_a_run_is_followed_live_and_its_page_is_kept_as_a_file(
    cluster: ProducerCluster, config: Path, browser: Chrome, tmp_path: Path
) -> None:
    for number in range(20):
        cluster.set(b"key-%d" % number, b"1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "dcp.cli.main"]
    words = ["run", "--config", str(config), "--http", address]
    with (tmp_path / "run.log").open("w") as log:
        run = subprocess.Popen([*command, *words], stdout=log, stderr=log)
    try:
        wait = WebDriverWait(browser, PATIENCE_SECONDS, ignored_exceptions=[Exception])

        def is_there(browser: Chrome) -> bool:
            browser.get(f"http://{address}/")
            return browser.title.startswith("dcplake")

        wait.until(is_there)

        def shown(tile: str, number: str) -> Callable[[Chrome], bool]:
            return lambda _: tiles(browser)[tile] == number

        wait.until(shown("rows in it", "20"))
        wait.until(lambda _: text(browser, "replicas").splitlines()[1].startswith("docs 0 0 1 "))
        assert text(browser, "state").startswith("ok"), text(browser, "state")
        assert (text(browser, "bucket"), text(browser, "stuck")) == ("default", "none")
        wait.until(shown("rows a second, newest rounds", "unknown"))  # there is one round
        overflow = "return document.documentElement.scrollWidth - window.innerWidth"
        assert browser.execute_script(overflow) <= 0
        cluster.set(b"key-1", b"2")  # without loading the page again
        wait.until(shown("newest round", "2"))
        wait.until(shown("rows in it", "1"))
        wait.until(lambda _: 0 <= float(tiles(browser)["rows a second, newest rounds"]) < 10)
        require_light_and_dark(browser)
        require_no_error_of_the_page(browser)
    finally:
        run.terminate()
        run.wait(PATIENCE_SECONDS)
    page = tmp_path / "lake.html"
    report = ["report", "--config", str(config), "--html", str(page)]
    assert subprocess.run([*command, *report], check=False).returncode == 0
    browser.get(page.as_uri())
    assert tiles(browser)["newest round"] == "2"
    require_light_and_dark(browser)
    require_no_error_of_the_page(browser)


def text(browser: Chrome, id_: str) -> str:
    found: str = browser.find_element("id", id_).text
    return found


def tiles(browser: Chrome) -> dict[str, str]:
    """What the tiles show, by what they are about."""
    lines = (each.text.splitlines() for each in browser.find_elements("class name", "tile"))
    return {about: number for number, about in lines}


def require_no_error_of_the_page(browser: Chrome) -> None:
    """Network errors are no bugs: there is no icon, and figures only while the run goes on."""
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]  # it has no types
    assert [each for each in log if each["source"] != "network"] == []


def require_light_and_dark(browser: Chrome) -> None:
    """Text and marks have another colour on another ground, as the reader's system asks."""
    seen = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        seen.append(
            browser.execute_script(
                "const of = x => getComputedStyle(document.querySelector(x));"
                "return [of('body').color, of('.bar').backgroundColor, of('#state').color]"
            )
        )
    light, dark = seen
    assert light[0] == "rgb(0, 0, 0)" and dark[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, dark, strict=True)), seen

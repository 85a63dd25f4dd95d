"""The page of a run under way, and the page as a file, in a headless Chromium, light and dark."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from dcp.lake.task_board.task_stats import WAITED_FOR
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
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


def test_a_run_is_followed_and_its_page_is_kept_as_a_file(
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
        require_charts(browser)
        cluster.set(b"key-1", b"2")  # without loading the page again
        wait.until(shown("newest round", "2"))
        wait.until(shown("rows in it", "1"))
        cluster.crash_restart(0, lost_seqnos=1)
        cluster.set(b"key-2", b"2")
        wait.until(lambda _: int(tiles(browser)["rollbacks so far"]) == 4)
        wait.until(lambda _: browser.execute_script("return charts.rollbacks.length") == 1)
        assert "rollbacks: 4" in str(label(browser, "chart-lag"))
        wait.until(lambda _: lacks_nothing(browser))
        require_tables_by_keyboard(browser)
        require_narrow(browser)
        require_light_and_dark(browser)
        require_no_error_of_the_page(browser)
    finally:
        run.terminate()
        run.wait(PATIENCE_SECONDS)
    page = tmp_path / "lake.html"
    report = ["report", "--config", str(config), "--html", str(page)]
    assert subprocess.run([*command, *report], check=False).returncode == 0
    browser.get(page.as_uri())
    assert int(tiles(browser)["newest round"]) > 2
    assert tiles(browser)["lag"] == "unknown"
    assert text(browser, "driver").startswith("No contact with the cluster for ")
    assert browser.execute_script("return charts.rollbacks.length") == 1
    require_charts(browser)
    require_tables_by_keyboard(browser)
    require_narrow(browser)
    require_light_and_dark(browser)
    require_no_error_of_the_page(browser)


CHARTS = ("chart-lag", "chart-rate", "chart-time")
INK = """
const canvas = document.querySelector('#' + arguments[0] + ' canvas');
const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
return data.filter((each, place) => place % 4 === 3 && each).length;
"""
FITS = """
const fits = x => x.offsetWidth > 100 && x.offsetWidth <= x.parentNode.clientWidth;
return [...document.querySelectorAll('.uplot')].filter(fits).length;
"""
OVERFLOW = "return document.documentElement.scrollWidth - window.innerWidth"


def require_charts(browser: Chrome) -> None:
    """Each is drawn, and says in words what it shows."""
    for chart in CHARTS:
        assert browser.execute_script(INK, chart) > 500, chart
        assert "the table below has each minute" in str(label(browser, chart))
    stages = text(browser, "flow").splitlines()[1:]
    assert [each.rsplit(" ", 4)[0] for each in stages] == [*WAITED_FOR.values()]
    assert len(browser.find_elements("css selector", "#map i")) == 4
    assert str(label(browser, "map")).startswith("4 vbuckets. ")


def label(browser: Chrome, id_: str) -> str | None:
    return browser.find_element("id", id_).get_attribute("aria-label")


def lacks_nothing(browser: Chrome) -> bool:
    return "has all that is known: 4" in str(label(browser, "map"))


def require_tables_by_keyboard(browser: Chrome) -> None:
    """What a chart shows is in a table that a key opens."""
    for id_, heads in (("minutes", "minute lag rows/s"), ("vbuckets", "state vbuckets which")):
        table = browser.find_element("id", id_)
        assert not table.is_displayed()
        summary = table.find_element("xpath", "ancestor::details/summary")
        summary.send_keys(Keys.ENTER)
        assert table.is_displayed() and table.text.startswith(heads)
        summary.send_keys(Keys.ENTER)


def require_narrow(browser: Chrome) -> None:
    """A telephone shows all of it, without a page that is wider than the screen."""
    wait = WebDriverWait(browser, 10)
    for width in (360, 1100):
        narrow = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        wait.until(lambda _: browser.execute_script(OVERFLOW) <= 0)
        wait.until(lambda _: browser.execute_script(FITS) == len(CHARTS))


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

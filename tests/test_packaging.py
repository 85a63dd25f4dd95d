"""The installed files are those of the tree, and the lock files say exactly what they should."""

import importlib.resources
import re
import tomllib
from pathlib import Path

import pytest

import dcp
from dcp.lake.monitor.page import page_html

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "tools" / "requirements").glob("*.txt"))


def test_every_package_of_the_tree_is_installed() -> None:
    modules = [each for name in ("dcp", "dcplake") for each in (ROOT / name).rglob("*.py")]
    folders = {path.parent.relative_to(ROOT) for path in modules}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({".".join(f.parts) for f in folders} | {"dcp.schemas"})


def test_every_module_beside_the_packages_is_installed() -> None:
    """That is where PySpark looks for data sources."""
    assert PROJECT["tool"]["setuptools"]["py-modules"] == [path.stem for path in ROOT.glob("*.py")]


def test_schemas_are_found_inside_the_package() -> None:
    assert importlib.resources.files("dcp.schemas").joinpath("__init__.py").is_file()


def test_the_chart_library_is_installed_with_its_licence() -> None:
    """The page of a run is one file: it needs no network."""
    page = page_html()
    assert "Copyright (c) 2022 Leon Sorokin" in page and "uPlot=function()" in page
    assert not re.search(r"""(?:src|href)=["']""", page)
    installed = PROJECT["tool"]["setuptools"]["package-data"]["dcp.lake.monitor"]
    assert installed == ["page.html", "uplot/*"]
    assert "dcp/lake/monitor/uplot/LICENSE" in PROJECT["project"]["license-files"]


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == dcp.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+?),? ", changelog, re.MULTILINE)[0] == dcp.__version__


def test_there_are_four_locks() -> None:
    assert [lock.name for lock in LOCKS] == ["airflow.txt", "build.txt", "docs.txt", "job.txt"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_holds_pins_and_hashes_and_no_address(lock: Path) -> None:
    pin = re.compile(r"^[a-z0-9._-]+(\[[a-z0-9,-]+\])?==[^ ]+( ; [^\\]+)? \\$")
    digest = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
    lines = lock.read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if not (line[:1] == "#" or pin.match(line) or digest.match(line))]
    assert odd == []
    assert not any("://" in line for line in lines)


def test_lock_keeps_the_three_that_belong_together() -> None:
    lock = (ROOT / "tools" / "requirements" / "job.txt").read_text(encoding="utf-8")
    assert "\npyspark==4.2.0 " in lock
    assert "\ndelta-spark==4.4.0 " in lock
    assert "\njdk4py==21." in lock

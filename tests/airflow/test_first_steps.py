"""The first steps of docs/howto/airflow.md, as a newcomer types them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.airflow.conftest import OURS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "howto" / "airflow.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("airflow")
def test_after_the_documented_steps_airflow_lists_the_documented_dags(tmp_path: Path) -> None:
    found = re.search(r"^## Start\n\n```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found, "the page begins with steps"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = subprocess.run(
        ["bash", "-eu", "-c", found[1]],
        cwd=ROOT,
        env={**kept, "HOME": str(tmp_path), "EDITOR": "touch", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    documented = re.findall(r"^\| `(dcplake\w*)` \|", PAGE, re.MULTILINE)
    listed = re.findall(r"^(dcplake\w*) +\| ", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(documented), done.stdout
    assert (tmp_path / "airflow" / "airflow.db").is_file(), "a database of its own"

"""The alerting rules, by Prometheus' own tool."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.mark.parametrize("words", [("check", "alerts.yml"), ("test", "alerts_test.yml")])
def test_the_rules_are_ones_and_a_lost_lake_among_several_alarms(words: tuple[str, str]) -> None:
    command, file = words
    subprocess.run(["promtool", command, "rules", DEPLOY / file], check=True, timeout=60)

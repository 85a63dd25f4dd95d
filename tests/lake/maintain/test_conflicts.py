"""Maintenance that meets another driver's commit does what it can, and says what it left."""

from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.errors import FencedError
from dcp.lake.run.replicate import run
from dcp.lake.store.table import CommitConflictError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_table import MemoryTable
from tests.lake.receiving import settings_for


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_step_that_loses_to_another_commit_is_left_and_ends_maintain_with_code_6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=1, seed=3)) as cluster:
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path)
        run(settings, once=True)
    optimize = MemoryTable.optimize

    def loses(table: MemoryTable, *given: object, **named: object) -> object:
        if table.name == "docs":
            raise CommitConflictError(table.where)
        return optimize(table, *given, **named)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(MemoryTable, "optimize", loses)
    assert main(["maintain", "--lake", settings.lake.root]) == FencedError.exit_code
    said = capsys.readouterr()
    told = said.out.splitlines()
    assert "optimize docs: skipped: a driver wrote in the same moment" in told
    assert any(line.startswith("vacuum docs: ") for line in told), "later steps are done"
    assert "skipped optimize docs: another driver committed" in said.err
    assert said.err.count("\n") == 1

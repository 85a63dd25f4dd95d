"""The commands as a user types them, against a real producer, real Spark and real tables."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.cli.main import COMMANDS, main
from dcp.errors import ConfigError
from dcp.lake.query.answers import answer, head
from dcp.lake.store.lock import locked
from tests.cli.conftest import World, world_in
from tests.lake.versions import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTS = 120


def _load(world: World, folder: Path) -> None:
    lines = [json.dumps({"code": f"A{n}", "n": n}) for n in range(DOCUMENTS)]
    file = folder / "documents.jsonl"
    file.write_text("\n".join(lines))
    words = ["load", "--seeds", world.seeds, "--user", "tester", "--key-template", "doc_{code}"]
    assert main([*words, "--bucket", world.cluster.settings.bucket, str(file)]) == 0


@pytest.fixture(scope="module")
def replicated(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A bucket and its lake; the last test that takes them writes to the lake."""
    folder = tmp_path_factory.mktemp("replicated")
    with world_in(folder) as world:
        _load(world, folder)
        assert main(["run", "--once", "--config", str(world.config)]) == 0
        yield world


def _json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["100%-of.trips"], indirect=True)
def test_load_plan_run_status_sql_tail_and_verify_tell_one_story(
    world: World, tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(world.config)]
    _load(world, tmp_path)
    assert f"{DOCUMENTS:,} documents stored" in capsys.readouterr().out

    assert main(["plan", *config, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["round"] == 1
    planned = [stream["vbucket"] for task in plan["tasks"] for stream in task["streams"]]
    assert sorted(planned) == [v for v in range(8) if world.cluster.high_seqno(v)]
    assert not world.lake.exists(), "a plan makes no lake"

    assert main(["run", *config, "--once", "--json"]) == 0
    events = _json_lines(capsys.readouterr().out)
    assert [event["event"] for event in events] == ["planned", "committed", "applied", "idle"]
    assert events[1]["rows"] == DOCUMENTS
    assert events[2]["inserted"] == DOCUMENTS

    assert main(["status", *config, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["round"] == 1
    seed, _ = world.cluster.seeds
    assert status["source"] == {"node": seed, "relay": None, "trouble": ""}, "it is no relay"
    assert status["stuck"] == [] and status["waiting"] == []
    assert [(each["table"], each["documents"]) for each in status["replicas"]] == [
        ("docs", DOCUMENTS)
    ]

    question = "SELECT key, seqno, get_json_object(document, '$.n') AS n FROM documents"
    assert main(["sql", *config, "--json", "--limit", "1000", question]) == 0
    rows = {row["key"]: row for row in _json_lines(capsys.readouterr().out)}
    assert rows.keys() == {f"doc_A{n}" for n in range(DOCUMENTS)}
    for key, row in rows.items():
        vbucket = world.cluster.vbucket_of(str(key).encode())
        held = world.cluster.state_at(vbucket, world.cluster.high_seqno(vbucket))
        assert row["seqno"] == held[str(key).encode()].seqno
        assert f"doc_A{row['n']}" == key

    world.cluster.delete(b"doc_A0")
    assert main(["run", *config, "--once"]) == 0
    assert "1 deleted" in capsys.readouterr().out
    counts = (
        "SELECT (SELECT count(*) FROM docs) AS now, count(*) AS before FROM docs VERSION AS OF 1"
    )
    assert main(["sql", *config, counts]) == 0
    assert capsys.readouterr().out.split()[-2:] == [str(DOCUMENTS - 1), str(DOCUMENTS)]

    assert main(["tail", *config, "-n", "1", "--json"]) == 0
    change = json.loads(capsys.readouterr().out)
    assert (change["kind"], change["key"], change["round"]) == ("deletion", "doc_A0", 2)

    assert main(["plan", *config]) == 0
    assert "no vbucket is behind" in capsys.readouterr().out

    assert main(["verify", *config]) == 0
    assert main(["metrics", *config]) == 0
    assert 'bucket="100%-of.trips"' in capsys.readouterr().out

    assert main(["maintain", *config, "--json", "--step", "clean", "--step", "heartbeat"]) == 0
    [step] = _json_lines(capsys.readouterr().out)
    assert (step["step"], step["table"], step["done"]) == ("clean", "changes", False)
    assert "no version from before" in str(step["told"])
    assert main(["maintain", *config, "--retain-hours", "1"]) == 2
    assert "expected the horizon of 168 hours or more" in capsys.readouterr().err


def test_a_wrong_password_is_one_sentence_without_the_password(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.config.with_name("password").write_text("not-the-password")
    assert main(["run", "--config", str(world.config), "--once"]) == 4
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "dcplake run:" in captured.err
    assert "not-the-password" not in captured.err + captured.out
    assert not (world.lake / "changes").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "lake.rot=x"], "lake.rot"),
        (["--set", "round.tasks=many"], "round.tasks"),
        (["--set", "nonsense"], "SECTION.KEY=VALUE"),
        (["--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
    ],
)
def test_a_setting_that_is_wrong_is_named(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--once", *words]) == 2
    assert named in capsys.readouterr().err


def test_an_unknown_bucket_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--once", "--config", str(world.config), "--set", "source.bucket=nowhere"]
    assert main(words) == 4
    assert "nowhere" in capsys.readouterr().err


def test_sql_that_spark_does_not_understand_is_said_without_a_stack(
    replicated: World, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    world = replicated
    assert main(["sql", "--config", str(world.config), "SELEC 1"]) == 2
    error = capsys.readouterr().err
    assert "SELEC" in error and "JVM stacktrace" not in error and "at org.apache" not in error

    assert main(["sql", "--config", str(world.config), "SELECT 1/0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("dcplake sql: SQL: ")
    for question, named in (
        ("SELECT 1/0", "DIVIDE_BY_ZERO"),
        ("SELECT cast('a' AS int)", "CAST_INVALID_INPUT"),
        ("SELECT interval 1 month", "cast it to STRING"),
    ):
        with pytest.raises(ConfigError, match=rf"^SQL: .*{named}.*") as refused:
            head(answer(spark, question), 1)
        assert "\n" not in str(refused.value)

    question = (
        "SELECT 1 a, 2 a, 3 a_2, array(1.5bd, 2bd) d, float('nan') f,"
        " named_struct('x', 18446744073709551615bd, 'x', float('infinity')) s"
    )
    assert main(["sql", "--config", str(world.config), "--json", question]) == 0
    assert capsys.readouterr().out == (
        '{"a":1,"a_3":2,"a_2":3,"d":[1.5,2],"f":null,"s":{"x":18446744073709551615,"x_2":null}}\n'
    )


@pytest.mark.slow
def test_sql_writes_only_when_asked_to_and_with_the_lock(
    replicated: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world, config = replicated, ["--config", str(replicated.config)]

    def count() -> int:
        return int(table_at(world.lake / "docs").num_rows)

    assert main(["sql", *config, "DELETE FROM docs"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "run with --write only" in error
    assert count() == DOCUMENTS

    with locked(world.lake, "a driver", makes_lake=False):
        assert main(["sql", *config, "SELECT 1"]) == 0, "who reads needs no lock"
        capsys.readouterr()
        assert main(["sql", *config, "--write", "DELETE FROM docs"]) == 6
        assert "another driver works on it" in capsys.readouterr().err
        request = "INSERT INTO control (id, action) VALUES ('ours', 'resume')"
        assert main(["pause", *config]) == 0
        assert main(["sql", *config, request]) == 2, "it is writing, all the same"
        assert main(["sql", *config, "--write", request]) == 0, "whom should it ask but the driver"
        assert main(["resume", *config]) == 0
        capsys.readouterr()
    assert count() == DOCUMENTS

    assert main(["sql", *config, "--write", "DELETE FROM docs WHERE key = 'doc_A0'"]) == 0
    error = capsys.readouterr().err
    assert "--write: holds the lake's lock" in error and "code 7" in error and "RESTORE" in error
    assert count() == DOCUMENTS - 1
    # And so it comes, as it was said.
    world.cluster.set(b"one more", b"1")
    assert main(["run", "--once", *config]) == 7
    assert "RESTORE TABLE" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["-1", "x", "2147483647"])
def test_a_limit_that_is_no_number_of_rows_is_refused(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", "--limit", limit, "SELECT 1"]) == 2
    assert f"--limit: found {limit!r}: Input should be " in capsys.readouterr().err


@pytest.mark.parametrize("hours", ["-1", "x", "nan", "inf"])
def test_hours_that_are_none_are_refused(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", f"--retain-hours={hours}"]) == 2
    assert f"--retain-hours: found {hours!r}: Input should be " in capsys.readouterr().err


def test_a_seed_that_is_no_address_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_text('{"key": "a", "value": 1}\n')
    assert main(["load", "--seeds", "foo:bar", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "'foo:bar': found port 'bar', expected 1 to 65535" in error


def test_questions_to_a_lake_that_is_not_there_say_so(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["sql", "SELECT 1"], ["status"], ["tail"]):
        assert main([*command, "--lake", str(tmp_path / "nothing")]) == 7
        assert "found no Delta table" in capsys.readouterr().err


def test_a_bad_line_is_named_and_nothing_of_it_is_stored(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"key": "a", "value": 1}\n{"key": "b"\n')
    words = ["load", "--seeds", world.seeds, "--user", "tester", str(file)]
    assert main(words) == 2
    assert "bad.jsonl line 2" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        assert f"Usage: dcplake {command} [OPTIONS]" in capsys.readouterr().out


def test_the_commands_are_listed_by_what_they_are_for_everyday_ones_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    found = re.findall(r"^([A-Z][a-z ]+):$|^  ([a-z-]+) {2,}\S", listed, re.MULTILINE)
    groups: dict[str, list[str]] = {}
    for title, name in found:
        if title:
            groups[title] = []
        elif list(groups)[-1:]:
            groups[list(groups)[-1]].append(name)
    del groups["Options"]
    assert list(groups) == ["Replicate", "Look", "Repair", "Test cluster"]
    assert groups["Replicate"][:4] == ["init", "doctor", "plan", "run"]
    assert groups["Look"][:3] == ["status", "sql", "verify"]
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(COMMANDS)


def test_help_waits_for_no_command_and_no_library_that_it_does_not_need() -> None:
    program = "import sys; from dcp.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    for words in (["--help"], ["serve", "--help"]):
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        loaded = set(done.stdout.split())
        ours = {"dcp.lake", "dcp.server.node", "dcp.producer.cluster"}
        assert not loaded & {"pyspark", "pydantic", "rich", *ours}


def test_what_serves_or_loads_waits_for_no_pandas() -> None:
    """An Arrow array or scalar that is made of a Python value imports it."""
    modules = "dcp.producer.serve, dcp.relay.process, dcp.client.kv.loader"
    program = f"import sys, {modules}; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.strip() == b"False"


def test_a_reader_that_goes_away_leaves_no_success(tmp_path: Path) -> None:
    """As of any program that SIGPIPE ends: what was not done must not pass for done."""
    program = "from dcp.cli.main import run_to_exit_code\ndef work(): raise BrokenPipeError\n"
    program += "raise SystemExit(run_to_exit_code('run', work))"
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("command", ["apply", "maintain", "resync"])
def test_a_mistyped_place_gets_no_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mistyped"
    assert main([command, "--lake", str(place)]) == 7
    assert "name the right location" in capsys.readouterr().err
    assert not place.exists()
    assert main(["top", "--lake", str(tmp_path)]) == 7, "a folder is no lake"

"""``dcplake doctor`` against real servers: each step, and what it says where that step fails."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dcp.cli.main import main
from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.errors import LakeError
from dcp.lake.adapters import opening
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.commands import setup_commands
from dcp.server.commands.controls import CONTROLS
from dcp.server.model.bucket_type import BucketType
from dcp.wire.vocabulary import HelloFeature, Status
from tests.client.drained import fill
from tests.producer.tls import CERTIFICATE, READER, TLS_FILES

USERS = {"tester": "secret-of-the-test", "streamless": "secret-of-the-test"}
STEPS = [
    "configuration",
    "name resolution",
    "TCP",
    "TLS",
    "HELLO",
    "SASL",
    "bucket",
    "cluster map",
    "data nodes",
    "DCP",
    "stream",
    "clock",
    "lake",
]
PLAINLY, NOBODY = "--set=source.allow_plain=true", "--set=source.username=nobody"
PLAIN_STEPS = [step for step in STEPS if step != "TLS"]
Change = Callable[[ProducerCluster], object]
Steps = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.setenv("DCPLAKE_PASSWORD", "secret-of-the-test")


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., ProducerCluster]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            chosen = {"nodes": 2, "vbuckets": 8, "users": USERS, "seed": 7, **settings}
            return stack.enter_context(ProducerCluster(ClusterSettings(**chosen)))

        yield make


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProducerCluster]:
    """Two nodes with documents, also encrypted; nobody changes it."""
    settings = ClusterSettings(
        nodes=2,
        vbuckets=8,
        users=USERS,
        users_without_streams=frozenset({"streamless"}),
        tls=TLS_FILES,
        seed=7,
    )
    with ProducerCluster(settings) as running:
        fill(running, 200)
        yield running


def options(seeds: list[str], **source: object) -> list[str]:
    chosen = {"seeds": ",".join(seeds), "username": "tester", **source}
    return [word for name, value in chosen.items() for word in ("--set", f"source.{name}={value}")]


def doctor(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Steps, str]:
    """Return the exit code, the steps, and why it ended."""
    code = main(["doctor", "--json", *words])
    said = capsys.readouterr()
    steps = [json.loads(line) for line in said.out.splitlines()]
    assert USERS["tester"] not in said.out + said.err
    return code, steps, json.loads(said.err)["message"] if said.err else ""


def test_every_step_of_a_cluster_that_is_well(
    cluster: ProducerCluster, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = options(cluster.tls_seeds, tls="true", tls_ca_file=CERTIFICATE)
    code, steps, error = doctor([*tls, "--lake", str(tmp_path / "lake")], capsys)
    assert (code, error) == (0, "")
    assert [(step["step"], step["state"]) for step in steps] == [(name, "ok") for name in STEPS]
    by_name = {step["step"]: step for step in steps}
    assert by_name["TLS"]["names"] == ["127.0.0.1", "localhost"]
    assert by_name["TLS"]["days_left"] > 30_000
    assert by_name["HELLO"]["refused"] == {} == by_name["DCP"]["refused"]
    assert by_name["SASL"]["mechanism"] == "SCRAM-SHA512"
    bucket = by_name["bucket"]
    assert (bucket["uuid"], bucket["vbuckets"]) == (cluster.bucket.map.bucket_uuid, 8)
    assert by_name["cluster map"]["nodes"] == cluster.tls_seeds
    nodes = by_name["data nodes"]
    assert (nodes["active_vbuckets"], nodes["seqnos"]) == (8, 200)
    stream = by_name["stream"]
    vbucket = stream["vbucket"]
    assert stream["high_seqno"] == cluster.high_seqno(vbucket)
    assert stream["high_seqno"] == min(map(cluster.high_seqno, range(8)))
    log = cluster.failover_log(vbucket)
    assert stream["failover_log"] == [[f"{e.vb_uuid:016x}", e.seqno] for e in log.entries]
    assert f"first snapshot 0-{stream['high_seqno']}" in stream["found"]
    assert by_name["clock"]["seconds_ahead"] == 0
    assert "none yet" in by_name["lake"]["found"]
    assert not (tmp_path / "lake").exists()


def test_a_certificate_signs_in_for_every_step(
    make_cluster: Callable[..., ProducerCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    files = replace(TLS_FILES, ca_file=CERTIFICATE, requires_client_certificate=True)
    cluster = make_cluster(tls=files, users={"reader": "unused"})
    certificates = {"tls_ca_file": CERTIFICATE, "tls_cert_file": READER}
    words = options(cluster.tls_seeds, tls="true", username="", **certificates)
    code, steps, error = doctor(words, capsys)
    assert not code, error
    by_name = {step["step"]: step for step in steps}
    assert by_name["clock"]["seconds_ahead"] == 0


def test_for_people_a_step_is_a_line(
    cluster: ProducerCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *options(cluster.seeds)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ok"] * len(PLAIN_STEPS)
    assert [line[9:24].strip() for line in lines] == PLAIN_STEPS

    assert main(["doctor", *options(cluster.seeds, bucket="nowhere")]) == 4
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("failed   bucket ")
    assert said.err.count("\n") == 1
    assert "expected bucket 'nowhere' to exist" in said.err


@pytest.mark.parametrize(
    ("words", "step", "code", "said"),
    [
        (["--set", "source.sedes=x"], "configuration", 2, "did you mean 'seeds'"),
        (["--set", "source.password_env=NONE"], "configuration", 2, "variable NONE is not set"),
        (
            ["--set", "source.tls=true", "--set", "source.tls_ca_file=/nowhere"],
            "configuration",
            2,
            "No such file or directory, expected certificates in PEM: check the file, and",
        ),
        (["--set", "source.seeds=nowhere.invalid"], "name resolution", 4, "check source.seeds"),
        (
            ["--set", "source.seeds=couchbase://nowhere.invalid"],
            "name resolution",
            4,
            "its DNS; SRV records _couchbase._tcp.nowhere.invalid: found none (",
        ),
        (
            ["--set", "source.seeds=couchbase://FREE?bootstrap_on=http", PLAINLY],
            "HTTP",
            4,
            "refused",
        ),
        (
            ["--set", "source.seeds=couchbase://HTTP?bootstrap_on=http", PLAINLY, NOBODY],
            "HTTP",
            4,
            "/pools/default/b/default: found status 401",
        ),
        (
            ["--set", "source.seeds=couchbases://HTTP?bootstrap_on=http"],
            "HTTP",
            4,
            "perhaps the port does not use TLS; expected the HTTP port of the cluster manager",
        ),
        (
            ["--set", "source.seeds=couchbase://SEED?network=external"],
            "bucket",
            2,
            "found addresses of network default, expected 'external'",
        ),
        (
            ["--set", "policy.persist_to=2"],
            "cluster map",
            2,
            "persist_to: found 2, expected at most",
        ),
        (["--set", "source.seeds=FREE"], "TCP", 4, "check host, port and firewalls"),
        (["--set", "source.seeds=TLS", "--set", "source.tls=true"], "TLS", 4, "tls_ca_file"),
        (
            ["--set", "source.seeds=HTTP", "--set", "source.bootstrap_timeout_seconds=0.3"],
            "HELLO",
            4,
            "for the answer to HELLO, expected it within 0.3 s of connecting; expected the port",
        ),
        (["--set", "source.seeds=TLS"], "HELLO", 4, "expected the port of the data service"),
        (
            ["--set", "source.seeds=127.0.0.1:18091", "--set", "source.tls=true"],
            "HTTP",
            4,
            "127.0.0.1:18091",
        ),
        (["--set", "source.username=streamless"], "DCP", 4, "Data DCP Reader"),
        (["--set", "source.receiver_group_tag=7"], "DCP", 4, "expected a relay"),
    ],
)
def test_the_first_step_that_fails_ends_it(
    cluster: ProducerCluster,
    words: list[str],
    step: str,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        places = {
            "FREE": f"127.0.0.1:{unused.getsockname()[1]}",
            "TLS": cluster.tls_seeds[0],
            "HTTP": cluster.http_seeds[0],
            "SEED": cluster.seeds[0],
        }
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    found, steps, error = doctor([*options(cluster.seeds), *words], capsys)
    assert found == code
    assert said in error
    assert (steps[-1]["step"], steps[-1]["state"]) == (step, "failed")
    assert steps[-1]["found"]
    assert steps[-1]["found"] in error
    assert {each["state"] for each in steps[:-1]} <= {"ok"}


@pytest.mark.parametrize(
    ("source", "refused", "said"),
    [
        ({"username": "nobody"}, ["SASL"], "check the name 'nobody'"),
        ({"bucket": "nowhere"}, ["SASL", "bucket"], "expected bucket 'nowhere' to exist"),
    ],
)
def test_a_seed_that_refuses_leaves_the_other_to_answer(
    cluster: ProducerCluster,
    source: dict[str, str],
    refused: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, steps, error = doctor(options(cluster.seeds, **source), capsys)
    assert code == 4
    assert said in error
    to_a_seed = [(name, "ok") for name in ("TCP", "HELLO", *refused)][:-1]
    expected = [(name, "ok") for name in PLAIN_STEPS[:2]]
    expected += [*to_a_seed, (refused[-1], "warning"), *to_a_seed, (refused[-1], "failed")]
    assert [(each["step"], each["state"]) for each in steps] == expected


@pytest.mark.parametrize("source", [{"bucket": "nowhere"}, {"username": "nobody"}])
def test_it_ends_with_the_error_that_a_run_ends_with(
    cluster: ProducerCluster,
    make_cluster: Callable[..., ProducerCluster],
    source: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = make_cluster(nodes=1, users={"another": "no"})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{unused.getsockname()[1]}"
    for seeds in ([*other.seeds, *cluster.seeds], [*cluster.seeds, *other.seeds], [free]):
        words = options(seeds, **source)
        code, _, error = doctor(words, capsys)
        assert main(["plan", "--json", *words]) == code == 4
        assert json.loads(capsys.readouterr().err)["message"] == error


@pytest.mark.parametrize(
    ("change", "step", "said"),
    [
        (lambda cluster: cluster.kill_node(1), "data nodes", "1 of 2 data nodes: 127.0.0.1:"),
        (
            lambda cluster: [
                cluster.refuse_stream(vbucket, Status.EACCESS) for vbucket in range(8)
            ],
            "stream",
            "DCP_STREAM_REQ: found status 0x24 EACCESS, no access, expected bucket",
        ),
        (
            lambda cluster: [
                cluster.refuse_stream(vbucket, Status.NOT_SUPPORTED) for vbucket in range(8)
            ],
            "stream",
            "it does not support that, expected success",
        ),
    ],
    ids=["dead node", "no access to documents", "no streams"],
)
def test_what_is_wrong_with_a_cluster(
    make_cluster: Callable[..., ProducerCluster],
    change: Change,
    step: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = make_cluster()
    fill(cluster, 50)
    change(cluster)
    code, steps, error = doctor(options(cluster.seeds), capsys)
    assert code == 4
    assert said in error
    assert (steps[-1]["step"], steps[-1]["state"]) == (step, "failed")


def test_what_seeds_are_asked_for_is_a_step_of_its_own(
    cluster: ProducerCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [f"couchbase://{cluster.http_seeds[0]}?bootstrap_on=http"]
    code, steps, error = doctor([*options(seeds), PLAINLY], capsys)
    assert not code, error
    asked, resolved = steps[1:3]
    assert (asked["step"], asked["nodes"]) == ("HTTP", cluster.seeds)
    assert asked["found"].startswith(f"http://{cluster.http_seeds[0]}/pools/default/b/default: ")
    assert resolved["step"] == "name resolution"

    _, steps, _ = doctor(options(["couchbase://nowhere.invalid"]), capsys)
    asked = steps[1]
    assert (asked["step"], asked["state"]) == ("DNS SRV", "ok"), "no record is no failure"
    assert "_couchbase._tcp.nowhere.invalid" in asked["found"]


def test_a_seed_in_trouble_leaves_the_others(
    make_cluster: Callable[..., ProducerCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(nodes=1)
    seeds = ["nowhere.invalid", *cluster.seeds]
    code, steps, _ = doctor(options(seeds), capsys)
    assert code == 0
    troubles = [each["step"] for each in steps if each["state"] == "warning"]
    assert troubles == ["name resolution", "TCP"]
    assert [each["step"] for each in steps].count("TCP") == 2


def test_vbuckets_without_a_node_are_told(
    cluster: ProducerCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a failover that was forced, without replicas; our producer has no such map."""
    parse = ClusterMap.parse

    def without_two(config: bytes, sender: NodeAddress, **chosen: Any) -> ClusterMap:
        found = parse(config, sender, **chosen)
        return replace(found, active=(-1, -1, *found.active[2:]))

    monkeypatch.setattr(ClusterMap, "parse", without_two)
    code, steps, _ = doctor(options(cluster.seeds), capsys)
    assert code == 0
    (warned,) = [each for each in steps if each["state"] == "warning"]
    assert (warned["step"], warned["vbuckets_without_node"]) == ("cluster map", [0, 1])
    assert "vbuckets 0-1 have no node: a run leaves them out" in warned["found"]


def test_an_empty_bucket_is_idle_and_a_clock_that_is_wrong_is_told(
    make_cluster: Callable[..., ProducerCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(clock=lambda: time() - 100)
    code, steps, _ = doctor(options(cluster.seeds), capsys)
    assert code == 0
    by_name = {step["step"]: step for step in steps}
    assert by_name["stream"]["found"].endswith(", idle")
    assert by_name["clock"]["state"] == "warning"
    assert -102 < by_name["clock"]["seconds_ahead"] < -97
    assert "behind this machine; set both by NTP" in by_name["clock"]["found"]


def test_an_old_server_is_told_with_what_it_costs(
    make_cluster: Callable[..., ProducerCluster],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = setup_commands.GRANTED - {HelloFeature.COLLECTIONS}
    monkeypatch.setattr(setup_commands, "GRANTED", lost)
    monkeypatch.setitem(CONTROLS, b"enable_expiry_opcode", lambda _dcp, _value: Status.EINVAL)
    code, steps, _ = doctor(options(make_cluster(release=(6, 6)).seeds), capsys)
    assert code == 0
    by_name = {step["step"]: step for step in steps}
    assert by_name["HELLO"]["state"] == "warning"
    assert by_name["HELLO"]["refused"] == {
        "COLLECTIONS": "only the default collection is replicated"
    }
    refused = {"enable_expiry_opcode", "max_marker_version", "backfill_order"}
    assert by_name["DCP"]["refused"].keys() == refused
    assert "expirations come as deletions" in by_name["DCP"]["found"]


def test_an_ephemeral_bucket_is_told_with_the_setting_that_has_no_effect_there(
    make_cluster: Callable[..., ProducerCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(bucket_type=BucketType.EPHEMERAL)
    for persist_to, state in ((0, "ok"), (1, "warning")):
        words = ["--set", f"policy.persist_to={persist_to}"]
        code, steps, _ = doctor([*options(cluster.seeds), *words], capsys)
        assert code == 0
        (step,) = [each for each in steps if each["step"] == "cluster map"]
        assert (step["state"], step["ephemeral"], step["replicas"]) == (state, True, 0)
        assert ("policy.persist_to has no effect" in step["found"]) is bool(persist_to)


@pytest.mark.parametrize(
    "lake", [("--lake", "gs://bucket/lake"), ("--set", "lake.schema=spark_catalog.lake")]
)
def test_a_lake_that_only_spark_reads_is_not_looked_at(
    cluster: ProducerCluster, capsys: pytest.CaptureFixture[str], lake: tuple[str, str]
) -> None:
    code, steps, _ = doctor([*options(cluster.seeds), *lake], capsys)
    assert code == 0
    assert "not looked at, which takes Spark" in steps[-1]["found"]


def test_a_lake_with_a_damaged_log_is_not_well(
    cluster: ProducerCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "lake" / CHANGES_TABLE / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no JSON")
    code, steps, said = doctor([*options(cluster.seeds), "--lake", str(tmp_path / "lake")], capsys)
    assert code == LakeError.exit_code
    assert steps[-1]["state"] == "failed"
    assert "found a Delta log that delta-rs cannot read; dcplake status starts Spark" in said


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (f"{CHANGES_TABLE}/x.parquet", "its Delta log is gone"),
        (f"docs/_delta_log/{0:020}.json", "found a Delta log that delta-rs cannot read"),
        (f"{CHANGES_TABLE}/_delta_log/note.txt", ""),
    ],
)
def test_foreign_files_where_no_lake_is_are_told_as_a_run_tells_them(
    cluster: ProducerCluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    file: str,
    said: str,
) -> None:
    path = tmp_path / "lake" / file
    path.parent.mkdir(parents=True)
    path.write_text("hello")
    code, steps, told = doctor([*options(cluster.seeds), "--lake", str(tmp_path / "lake")], capsys)
    assert code == (LakeError.exit_code if said else 0)
    assert (steps[-1]["state"], said in told) == ("failed" if said else "ok", True)


def test_a_foreign_table_where_no_lake_is_is_not_well(
    cluster: ProducerCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "lake" / "docs"
    write_deltalake(str(table), pa.table({"a": [1]}))
    code, _, said = doctor([*options(cluster.seeds), "--lake", str(tmp_path / "lake")], capsys)
    assert code == LakeError.exit_code
    assert "table docs: found a Delta table, expected none where no lake is" in said

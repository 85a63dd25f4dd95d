"""Lakes on S3, with the settings of docs/howto/object-stores.md, in one session of its own."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs
import pytest

from dcp.errors import FencedError, IncompleteRunError, LakeError
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import Settings
from dcp.lake.config.storage_options import s3a_settings
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.driver_host import DriverHost
from tests.lake.object_store import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    Failure,
    ObjectStore,
    Request,
    kind_of,
)
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import (
    complete_seqnos,
    require_every_version_exact,
    require_no_row_twice,
)
from tests.lake.secret_search import is_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE: Final = "the lake #1?+ü&=[*]{'}"
"""What a URL, SQL or a shell would read otherwise."""
ROOT: Final = f"s3://{BUCKET}/{LAKE}"
PAGE: Final = Path(__file__).parents[3] / "docs" / "howto" / "object-stores.md"
BUSY: Final = ("503 Slow Down", "SlowDown")
QUICK: Final = {
    "spark.hadoop.fs.s3a.retry.throttle.limit": "2",
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
}


def documented_options(store: ObjectStore) -> dict[str, str]:
    """Return the options that the page has for other S3 servers, for this one."""
    section = PAGE.read_text().partition("## Other S3 servers")[2]
    block = re.search(r"```toml\n(.*?)```", section, re.S)
    assert block is not None
    options: dict[str, str] = tomllib.loads(block[1])["lake"]["storage_options"]
    return options | {"endpoint": store.endpoint, "max_retries": "2"}


@dataclass(frozen=True)
class Shared:
    """What the tests of this module share: a store, and a driver that finds it."""

    store: ObjectStore
    host: DriverHost
    folder: Path


@dataclass
class Scene:
    cluster: ProducerCluster
    shared: Shared
    folder: Path
    spark: "SparkSession"
    lake_name: str = LAKE
    output: str = ""
    written: int = 0

    @property
    def store(self) -> ObjectStore:
        return self.shared.store

    @property
    def host(self) -> DriverHost:
        return self.shared.host

    @property
    def settings(self) -> Settings:
        """The settings of a lake in a folder that is copied from the bucket."""
        return settings_for(self.cluster, self.folder, round={"quiet_seconds": 0.2})

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            self.cluster.set(b"key-%d" % (self.written % 25), b'{"n": %d}' % self.written)

    def begin(self, command: str, *more: str, steps: Sequence[str] = ()) -> list[Path]:
        """Start a command that is held at these steps; return their files."""
        settings = self.settings
        values = {
            "source.seeds": ",".join(settings.source.seeds),
            "source.username": settings.source.username,
            "source.password_file": settings.source.password_file,
            "round.quiet_seconds": settings.round.quiet_seconds,
            "lake.root": f"s3://{BUCKET}/{self.lake_name}",
            "lake.storage_options": ",".join(
                f"{name}={value}" for name, value in documented_options(self.store).items()
            ),
        }
        sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        return self.host.begin([command, *more, *sets], steps)

    def ended(self, code: int = 0, held: Sequence[Path] = ()) -> str:
        ended = self.host.ended(held)
        self.output += ended.output
        assert ended.code == code and "Traceback" not in ended.output, ended.output
        return ended.output

    def do(self, command: str, *more: str) -> str:
        self.begin(command, *more)
        return self.ended()

    def files(self) -> list[str]:
        """Return the names of all files of the lake; the bucket may hold others' as well."""
        below = pafs.FileSelector(f"{BUCKET}/{LAKE}", recursive=True)
        return [each.path for each in self.store.files.get_file_info(below)]

    def copied(self) -> Path:
        """Return the folder with a copy of what the bucket holds by now."""
        copy = Path(self.settings.lake.root)
        pafs.copy_files(
            f"{BUCKET}/{LAKE}", str(copy), source_filesystem=self.store.files, use_threads=False
        )
        return copy

    def lake(self) -> LakeTables:
        return lake_of(self.settings, self.spark)

    def replicate_elsewhere(self) -> None:
        """Replicate in a copy, as another driver, and put its files into the bucket, logs last."""
        copy = self.copied()
        before = set(copy.rglob("*"))
        run(self.settings, once=True, spark=self.spark)
        made = {file for file in copy.rglob("[!._]*") if file.is_file()} - before
        for file in sorted(made, key=lambda file: file.suffix == ".json"):
            name = f"{BUCKET}/{LAKE}/{file.relative_to(copy)}"
            with self.store.files.open_output_stream(name) as sink:
                sink.write(file.read_bytes())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with ObjectStore() as store:
        host = DriverHost(
            folder / "host",
            s3a_settings(ROOT, documented_options(store), {}) | QUICK,
            AWS_ACCESS_KEY_ID=ACCESS_KEY,
            AWS_SECRET_ACCESS_KEY=SECRET_KEY,
        )
        try:
            yield Shared(store, host, folder)
        finally:
            host.kill()


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        yield cluster


@pytest.fixture
def scene(
    spark: "SparkSession", cluster: ProducerCluster, shared: Shared, tmp_path: Path
) -> Iterator[Scene]:
    yield Scene(cluster, shared, tmp_path, spark)
    shared.store.answer = lambda _: None
    shared.store.ignores_conditions = False


def busy_at_each_first_write(store: ObjectStore) -> set[str]:
    """Let the store answer 503 to the first attempt of each write; return what was refused."""
    refused: set[str] = set()

    def answer(request: Request) -> Failure | None:
        path = request["PATH_INFO"]
        if request["REQUEST_METHOD"] != "PUT" or path in refused:
            return None
        refused.add(path)
        return BUSY

    store.answer = answer
    return refused


def busy_from_the_first_data_file_on(store: ObjectStore) -> list[str]:
    """Let the store answer 503 from then on; return the methods that were refused."""
    refused = list[str]()

    def answer(request: Request) -> Failure | None:
        method = request["REQUEST_METHOD"]
        if not refused and not (method == "PUT" and request["PATH_INFO"].endswith(".parquet")):
            return None
        refused.append(method)
        return BUSY

    store.answer = answer
    return refused


def leave_old_files(scene: Scene) -> set[str]:
    """Put a file into a table, as a round that was never committed left it 30 days ago, and one
    that a process was killed with while it tried the store.
    """
    names = f"{LAKE}/docs/left.parquet", f"{LAKE}/docs/_delta_log/.a.dcplake-probe"
    for name in names:
        scene.store.write(name, b"PAR1", days_old=30)
    return {f"{BUCKET}/{name}" for name in names}


def require_few_requests(scene: Scene) -> None:
    """Count what a round with its apply, and maintenance behind it, ask of the store.

    Maintenance deletes files that no version needs.
    """
    left = leave_old_files(scene)
    asked = Counter[str]()
    scene.store.answer = lambda request: asked.update([kind_of(request)])
    scene.write(20)
    scene.do("run", "--once")
    assert "vacuum docs: deleted 1 files" in scene.do("maintain")
    assert not left & set(scene.files())
    scene.store.answer = lambda _: None
    assert asked.total() <= 700, asked
    assert asked["PUT"] <= 45, asked


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lake_on_s3(scene: Scene) -> None:
    cluster, store = scene.cluster, scene.store
    scene.write(60)
    store.files.create_dir(f"{BUCKET}/{LAKE}")

    # A store that takes no notice of the condition holds no lake, however often one tries.
    store.ignores_conditions = True
    for words in (["doctor"], ["run", "--once"], ["run", "--once"]):
        scene.begin(*words)
        ended = scene.ended(LakeError.exit_code)
        assert f"at {store.endpoint}: the store does not refuse to overwrite" in ended
    store.ignores_conditions = False
    assert "it refused to overwrite the file" in scene.do("doctor")
    assert not [each for each in scene.files() if "probe" in each or each.endswith(".json")]

    scene.replicate_elsewhere()
    assert "of this bucket" in scene.do("doctor")

    for node in (0, 1):
        cluster.crash_restart(node, lost_seqnos=3)
    scene.write(20)
    methods = busy_from_the_first_data_file_on(store)
    scene.begin("run", "--once")
    scene.host.wait_until(lambda: {"PUT", "GET"} <= {*methods}, "a refused look after the round")
    refused = busy_at_each_first_write(store)
    ended = scene.ended()
    assert f"task on {gethostname()}: 503 Service Unavailable" in ended
    assert "waiting for the object store" in ended
    assert "rolled back: vbuckets 0-3" in ended
    assert any(each.endswith(f"/changes/_delta_log/{3:020}.json") for each in refused)
    store.answer = lambda _: None
    assert re.search(r"optimize changes: \d files became 1\n", scene.do("maintain"))

    # Another driver commits while this one, which has looked, receives for the same round.
    scene.write(20)
    [held] = scene.begin("run", "--once", steps=["round.received"])
    scene.host.wait_for(held)
    scene.replicate_elsewhere()
    assert "another driver" in scene.ended(FencedError.exit_code, [held])

    require_few_requests(scene)

    scene.copied()
    lake = scene.lake()
    assert require_every_version_exact(lake, cluster) == 4
    require_no_row_twice(lake)
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(4)}
    assert complete_seqnos(lake, latest_round(lake)) == high
    told = [scene.output.encode()]
    folders = scene.folder, scene.shared.folder
    told += [file.read_bytes() for each in folders for file in each.rglob("*") if file.is_file()]
    assert not any(is_in(SECRET_KEY, each) for each in told)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_erase(scene: Scene) -> None:
    scene.lake_name = "erased"
    scene.write(20)
    scene.do("run", "--once")
    scene.cluster.delete(b"key-7")
    scene.do("run", "--once")
    keys = scene.folder / "keys.txt"
    keys.write_text("key-7\n")
    told = scene.do("erase", "--keys", str(keys))
    assert (
        "keys of _default._default: 1, 1 of them in the lake; rows: 2 in changes, 0 in docs" in told
    )
    scene.begin("erase", "--keys", str(keys), "--check")
    assert "hold some" in scene.ended(IncompleteRunError.exit_code)
    scene.do("run", "--once")
    assert "none of" in scene.do("erase", "--keys", str(keys), "--check")
    assert "equal" in scene.do("verify")

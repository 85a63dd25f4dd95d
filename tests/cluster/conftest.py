"""The bucket of the suite: of the cluster that ``DCPLAKE_TEST_CLUSTER`` names, else of our own."""

import os
from collections.abc import Iterator

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.cluster.bucket import Bucket
from tests.producer.tls import CERTIFICATE, TLS_FILES

OURS = ClusterSettings(
    nodes=2,
    vbuckets=16,
    seed=5,
    rules="server",
    users={"ada": "secret-of-ada"},
    checkpoint_items=20,
    tls=TLS_FILES,
)


@pytest.fixture(scope="module")
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    """``encrypted``, which a test may have as parameter, is of ours: others say it themselves."""
    is_encrypted = getattr(request, "param", "") == "encrypted"
    if seeds := os.environ.get("DCPLAKE_TEST_CLUSTER"):
        if is_encrypted:
            pytest.skip("DCPLAKE_TEST_CLUSTER says whether connections are encrypted")
        yield from _open({"source.seeds": seeds}, None)
        return
    password = tmp_path_factory.mktemp("cluster") / "password"
    password.write_text("secret-of-ada")
    with ProducerCluster(OURS) as cluster:
        seeds = (
            f"couchbases://{','.join(cluster.tls_seeds)}"
            if is_encrypted
            else f"couchbase://{','.join(cluster.seeds)}"
        )
        options = {
            "source.seeds": seeds,
            "source.tls_ca_file": CERTIFICATE,
            "source.bucket": OURS.bucket,
            "source.username": "ada",
            "source.password_file": str(password),
        }
        yield from _open(options, cluster)


def _open(options: dict[str, str], ours: ProducerCluster | None) -> Iterator[Bucket]:
    bucket = Bucket(options, ours)
    yield bucket
    bucket.close()

"""The bucket of the suite: of the cluster that ``DCPLAKE_TEST_CLUSTER`` names, else of our own."""

import os
from collections.abc import Iterator

import pytest

from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.cluster.bucket import Bucket

OURS = ClusterSettings(nodes=2, vbuckets=16, seed=5, rules="server", users={"ada": "secret-of-ada"})


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    if seeds := os.environ.get("DCPLAKE_TEST_CLUSTER"):
        yield from _open({"source.seeds": seeds})
        return
    password = tmp_path_factory.mktemp("cluster") / "password"
    password.write_text("secret-of-ada")
    with ProducerCluster(OURS) as cluster:
        options = {
            "source.seeds": f"couchbase://{','.join(cluster.seeds)}",
            "source.bucket": OURS.bucket,
            "source.username": "ada",
            "source.password_file": str(password),
        }
        yield from _open(options)


def _open(options: dict[str, str]) -> Iterator[Bucket]:
    bucket = Bucket(options)
    yield bucket
    bucket.close()

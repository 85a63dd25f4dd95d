"""A bucket that is not the lake's: the message says which is, and what was found."""

from dataclasses import replace

import pytest

from dcp.errors import LakeError
from dcp.lake.tables.lake_tables import LakeIdentity

OURS = LakeIdentity("lake-1", "travel", "uuid-1", 1024, "cluster-1")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bucket": "beer"}, "bucket 'travel', found 'beer' (source.bucket): name the lake's"),
        (
            {"cluster_uuid": "cluster-2"},
            "bucket 'travel' of the cluster with uuid 'cluster-1', found the cluster with uuid"
            " 'cluster-2'; it is another one: check source.seeds",
        ),
        (
            {"bucket_uuid": "uuid-2"},
            "bucket 'travel' with uuid 'uuid-1' and 1024 vbuckets, found uuid 'uuid-2' and 1024;"
            " the bucket was created again",
        ),
    ],
)
def test_another_bucket_than_the_lakes_is_told_beside_it(change: dict[str, str], told: str) -> None:
    with pytest.raises(LakeError) as refused:
        OURS.require_same(replace(OURS, **change), "/data/lake")  # type: ignore[arg-type]  # fields that are texts
    assert str(refused.value).startswith(f"/data/lake: this lake holds {told}")


def test_the_lakes_own_bucket_is_taken_where_a_server_does_not_tell_its_cluster() -> None:
    OURS.require_same(replace(OURS, cluster_uuid=""), "/data/lake")

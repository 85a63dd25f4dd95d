"""Makes a Delta table without Spark, with the same first commit as Spark's CREATE TABLE."""

import json
import time
from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from deltalake import Schema as StoredSchema

from dcp.lake.store.file_commit import commit_info, commit_lines, table_metadata
from dcp.lake.store.table_location import TableLocation

DELETION_VECTORS: Final = "delta.enableDeletionVectors"
_CLUSTERING: Final = "delta.clustering"


def commit_table(
    location: TableLocation,
    columns: pa.Schema,
    cluster_by: Collection[str],
    properties: Mapping[str, str],
) -> None:
    """Make an empty table unless it exists; ``location`` must be able to commit (`can_commit`)."""
    try:
        location.commit(0, commit_lines(_actions(columns, cluster_by, properties)))
    except FileExistsError:
        return


def _actions(
    columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
) -> list[dict[str, Any]]:
    now_milliseconds = time.time_ns() // 1_000_000
    parameters = {
        "partitionBy": "[]",
        "clusterBy": json.dumps(list(cluster_by)),
        "description": None,
        "isManaged": "false",
        "properties": json.dumps(dict(properties)),
    }
    clustering = {
        "clusteringColumns": [[name] for name in cluster_by],
        "domainName": _CLUSTERING,
    }
    actions: list[dict[str, Any]] = [
        commit_info(
            now_milliseconds, "CREATE TABLE", parameters, isBlindAppend=True, operationMetrics={}
        ),
        table_metadata(
            id=str(uuid4()),
            schemaString=StoredSchema.from_arrow(columns).to_json(),
            configuration=dict(properties),
            createdTime=now_milliseconds,
        ),
        {"protocol": _protocol(bool(cluster_by), properties.get(DELETION_VECTORS) == "true")},
    ]
    if cluster_by:
        domain = {
            "domain": _CLUSTERING,
            "configuration": json.dumps(clustering),
            "removed": False,
        }
        actions.append({"domainMetadata": domain})
    return actions


def _protocol(is_clustered: bool, has_deletion_vectors: bool) -> dict[str, Any]:
    """Return the lowest protocol that allows the features (Delta protocol, "Table Features")."""
    readers = ["deletionVectors"] if has_deletion_vectors else []
    writers = readers + (["domainMetadata", "clustering"] if is_clustered else [])
    if not writers:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": 3 if readers else 1,
        "minWriterVersion": 7,
        **({"readerFeatures": readers} if readers else {}),
        "writerFeatures": ["appendOnly", "invariants", *writers],
    }

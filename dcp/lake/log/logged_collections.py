"""Reads from the log the names of scopes and collections, also of those that are gone.

They are in no manifest any more, and the name of a table does not tell: it is shortened, and
characters that no catalog takes are gone.
"""

from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.tables.collections import Collections, ManifestCollection, collections_of
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.tables import LakeTables
from dcp.wire.json_tree import json_tree
from dcp.wire.vocabulary import SystemEventKind


def logged_collections(lake: LakeTables) -> Collections:
    """Return the scopes and collections that the log tells of, also those that are gone."""
    default = collections_of(None)
    scopes, begun = dict(default.scopes), []
    for row in lake.changes.rows("DISTINCT detail", "kind = 'system_event'"):
        told = json_tree(row["detail"])
        if told["event"] == SystemEventKind.CREATE_SCOPE.name:
            scopes[told["scope_id"]] = told["name"]
        elif told["event"] == SystemEventKind.BEGIN_COLLECTION.name and "scope_id" in told:
            begun.append(told)
    return Collections(
        scopes,
        (
            *default.all,
            *(
                ManifestCollection(
                    told["scope_id"], scopes[told["scope_id"]], told["collection_id"], told["name"]
                )
                for told in begun
                if told["scope_id"] in scopes
            ),
        ),
    )


def filter_of(lake: LakeTables, rules: FilterSettings, manifest: bytes | None) -> DocumentFilter:
    """Return a lake's filter for the collections of a bucket; see `DocumentFilter.resolve`."""
    return DocumentFilter.resolve(rules, manifest, lambda: logged_collections(lake).names)

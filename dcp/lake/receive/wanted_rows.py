"""Drops from a task's streams what the lake's filter leaves out.

A collection that is neither in the manifest nor began in these streams is kept: it may be newer
than the manifest, and in the log it costs no more than its bytes.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.receive.system_events import collection_of
from dcp.lake.tables.collections import ManifestCollection
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.keys import key_columns
from dcp.protocol.events import SystemEventReceived
from dcp.wire.columns import DataColumns
from dcp.wire.system_event import CollectionBegun, ScopeCreated


class WantedRows:
    """The filter of one task; learns of new collections from the events that pass by."""

    def __init__(self, wanted: DocumentFilter) -> None:
        self._filter = wanted
        self._scopes = dict(wanted.scopes)
        self._collections = dict(wanted.wanted)

    def documents(self, columns: DataColumns) -> DataColumns:
        """Return the documents that are wanted, in their order."""
        if self._filter.fingerprint is None:
            return columns
        passes = self._passes(columns)
        return columns if passes.all() else columns.take(np.flatnonzero(passes))

    def learn(self, event: SystemEventReceived) -> None:
        """Learn of a scope or collection that begins, before the documents of its delivery."""
        meaning = event.meaning
        if isinstance(meaning, ScopeCreated):
            self._scopes[meaning.scope_id] = meaning.name.decode()
        elif isinstance(meaning, CollectionBegun) and meaning.scope_id in self._scopes:
            begun = ManifestCollection(
                meaning.scope_id,
                self._scopes[meaning.scope_id],
                meaning.collection_id,
                meaning.name.decode(),
            )
            self._collections[meaning.collection_id] = self._filter.wants(begun)

    def wants(self, event: SystemEventReceived) -> bool:
        """Return whether an event is of a collection that is wanted, or of none."""
        collection_id = collection_of(event)
        return collection_id is None or self._collections.get(collection_id, True)

    def _passes(self, columns: DataColumns) -> NDArray[np.bool_]:
        rules = self._filter.rules
        unwanted = [each for each, is_wanted in self._collections.items() if not is_wanted]
        passes = ~np.isin(columns.collection_id, unwanted)
        passes &= columns.cas >= rules.since_ns
        if rules.include_keys or rules.exclude_keys:
            keys, _ = key_columns(columns.key)
            if rules.include_keys:
                passes &= _found(keys, rules.include_keys)
            if rules.exclude_keys:
                passes &= ~_found(keys, rules.exclude_keys)
        return passes


def _found(keys: pa.StringArray, expression: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.match_substring_regex(keys, expression).to_numpy(
        zero_copy_only=False
    )
    return found

"""Manifests by number: what is saved of a table makes the same manifests again, order included."""

import json

from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.manifest_changes import (
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    FlushCollection,
    ManifestChange,
    changed,
)
from dcp.server.model.manifest import FIRST, Manifest
from dcp.server.model.manifest_table import ManifestTable, Row
from dcp.server.model.refused_error import RefusedError

NAMES = st.sampled_from(["a", "b", "_default"])
IDS = st.none() | st.integers(8, 40)
CHANGES = st.one_of(
    st.builds(CreateScope, NAMES, IDS),
    st.builds(DropScope, NAMES),
    st.builds(CreateCollection, NAMES, NAMES, st.none() | st.integers(0, 9), IDS),
    st.builds(DropCollection, NAMES, NAMES),
    st.builds(FlushCollection, NAMES, NAMES),
)


def _all_at(manifest: Manifest) -> list[object]:
    return [
        manifest,
        list(manifest.scopes),
        list(manifest.collections),
        manifest.given_scope_ids,
        manifest.given_collection_ids,
    ]


@given(changes=st.lists(CHANGES, max_size=30), jumps=st.lists(st.integers(0, 20), max_size=5))
def test_a_saved_table_holds_the_same(changes: list[ManifestChange], jumps: list[int]) -> None:
    table, seen = ManifestTable(), [FIRST]
    for change in changes:
        try:
            seen.append(changed(seen[-1], [change]))
        except RefusedError:
            continue
        table.add(seen[-1])
    for jump in jumps:  # a vbucket that comes from far back has steps of its own
        for _, then in seen[jump % len(seen)].steps(seen[-1]):
            seen.append(then)
            table.add(then)
    again = ManifestTable(json.loads(json.dumps(table.rows)))
    for manifest in seen:
        assert _all_at(again[table.number(manifest)]) == _all_at(manifest)
    assert again.rows == table.rows


@given(data=st.data(), changes=st.lists(CHANGES, max_size=30))
def test_what_is_kept_keeps_its_number(data: st.DataObject, changes: list[ManifestChange]) -> None:
    """The last one stays, so that a number is not given twice, also of a table that is read."""
    table, newest = ManifestTable(), FIRST
    numbered = {0: FIRST}
    for change in changes:
        try:
            newest = changed(newest, [change])
        except RefusedError:
            continue
        table.add(newest)
        number = table.number(newest)
        assert number == max(numbered) + 1
        numbered[number] = newest
        if data.draw(st.booleans()):
            held = [number for number in numbered if number in table]
            kept = data.draw(st.sets(st.sampled_from(held)))
            table.keep(kept)
            assert [each for each in numbered if each in table] == sorted(kept | {0, number})
            table = data.draw(st.sampled_from([table, ManifestTable(_saved(table))]))
        for number, manifest in numbered.items():
            if number in table:
                assert _all_at(table[number]) == _all_at(manifest)
                assert table.number(manifest) == number
            else:
                assert table.find(manifest) is None
    assert ManifestTable(_saved(table)).rows == table.rows


def _saved(table: ManifestTable) -> list[Row]:
    rows: list[Row] = json.loads(json.dumps(table.rows))
    return rows


def test_a_manifest_is_added_once() -> None:
    table, other = ManifestTable(), changed(FIRST, [CreateScope("s")])
    for _ in range(2):
        table.add(FIRST)
        table.add(other)
    assert (table.number(FIRST), table.number(other), len(table.rows)) == (0, 1, 1)

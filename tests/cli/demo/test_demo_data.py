"""The demo's documents."""

from dcp.cli.demo.demo_data import airports, changes, documents


def test_the_demo_changes_distinct_airports_and_the_same_ones_for_a_seed() -> None:
    source = airports()
    assert len(documents(source)) == len(source) > 28_000
    day = changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day == changes(source, updates=400, deletes=150, expiries=12, seed=1)
    assert day != changes(source, updates=400, deletes=150, expiries=12, seed=2)
    keys = {key for key, _ in day.updated} | {*day.deleted} | {*day.expiring}
    assert len(keys) == 400 + 150 + 12
    untouched = day.untouched(source)
    assert len(untouched) == len(source) - len(keys)
    assert not {key for key, _ in documents(untouched)} & keys

"""The demo's documents."""

from dcp.cli.demo.airport_changes import airports, changes, documents


def test_the_demo_changes_distinct_airports_and_the_same_ones_for_a_seed() -> None:
    stored = airports()
    assert len(documents(stored)) == len(stored) > 28_000
    day = changes(stored, updates=400, deletes=150, expiries=12, seed=1)
    assert day == changes(stored, updates=400, deletes=150, expiries=12, seed=1)
    assert day != changes(stored, updates=400, deletes=150, expiries=12, seed=2)
    keys = {key for key, _ in day.updated} | {*day.deleted} | {*day.expiring}
    assert len(keys) == 400 + 150 + 12
    untouched = day.untouched(stored)
    assert len(untouched) == len(stored) - len(keys)
    assert not {key for key, _ in documents(untouched)} & keys

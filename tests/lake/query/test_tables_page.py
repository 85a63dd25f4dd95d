"""docs/reference/tables.md has the columns that tables and views have."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from dcp.lake.change_log.control import CONTROL
from dcp.lake.query.views import register_views
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import AUDIT, CHANGES, QUALITY, REPLICA, spark_types
from tests.lake.conftest import NewLake

DOCS: Final = Path(__file__).parents[3] / "docs"
PAGE: Final = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
SECTIONS: Final = dict(
    re.findall(
        r"^## Columns of (?:a )?(\w+)(?: table)?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
)
LISTED: Final = dict(re.findall(r"^\| (.+?) \| (table|view) \| ", PAGE, re.MULTILINE))
NESTED: Final = ("STRUCT", "ARRAY", "MAP")
OF_A_REPLICA: Final = dict(spark_types(REPLICA))
TABLES: Final = {"changes": CHANGES, "control": CONTROL, "replica": REPLICA}


def columns_in(section: str) -> Iterator[tuple[str, str]]:
    """The columns and types in the last table of a section; without a type: as in a replica."""
    table = section.rpartition("| column | type | meaning |\n|---|---|---|\n")[2]
    for names, kind in re.findall(r"^\| (`.+?) \| ([A-Z0-9(),]*) ?\| ", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            yield name, kind or OF_A_REPLICA[name]


def shown(columns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Columns with types as the page shows them: it does not say what is inside."""
    types = ((name, kind.upper()) for name, kind in columns)
    return [
        (name, next((each for each in NESTED if kind.startswith(each)), kind))
        for name, kind in types
    ]


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_tables(name: str) -> None:
    assert list(columns_in(SECTIONS[name])) == shown(spark_types(TABLES[name]))


def test_the_tables_undone_and_quality_have_no_other_columns_than_the_pages_list() -> None:
    assert sorted(columns_in(SECTIONS["rollbacks"])) == sorted(shown(spark_types(AUDIT)))
    page = (DOCS / "howto" / "quality.md").read_text(encoding="utf-8")
    _, _, results = page.partition("\n## Results\n")
    listed = re.findall(r"^\| (`.+?) \| ", results, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(listed)) == QUALITY.names


@pytest.mark.slow
def test_columns_of_views(new_lake_in_memory: NewLake, view: Callable[[LakeTables], None]) -> None:
    lake = new_lake_in_memory(1)
    view(lake)
    made = register_views(lake)
    listed = {name for name, kind in LISTED.items() if kind == "view"}
    assert listed == {f"`{name}`" for name in (*made, "documents_typed", "docs_NAME")}
    assert {"documents", "row_history", "positions", "rounds"} < SECTIONS.keys() & {*made}
    for name in SECTIONS.keys() - TABLES:
        found = lake.spark.table(name).dtypes
        assert list(columns_in(SECTIONS[name])) == shown(found), name
    assert sorted(lake.spark.table("docs_live").columns) == sorted(REPLICA.names)

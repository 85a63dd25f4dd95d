"""Columns whose names are not those of the fields: they evolve, and another alias is followed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.json_paths import path_text
from dcp.lake.config.settings import Settings
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import history
from dcp.lake.tables.typed_columns import arrays_of
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import lake_of, settings_for

ANEW: Final = "docs: the next apply writes all rows anew, with other typed columns"
CONTRACT: Final = """
collection = "_default._default"
mode = "evolve"
[columns]
"$.first name" = { as = "first_name", type = "string" }
"$.A" = { as = "a_2", type = "bigint" }
"$.lines[*].unit price" = { as = "unit_price", type = "int" }
"""


class Scene:
    def __init__(self, cluster: ProducerCluster, folder: Path) -> None:
        self.cluster = cluster
        self.contract = folder / "schemas" / "default.toml"
        self.contract.parent.mkdir()
        self.settings: Settings = settings_for(
            cluster,
            folder,
            round={"quiet_seconds": 0.2},
            apply={"contracts_folder": str(self.contract.parent)},
        )

    def run(self, **documents: Any) -> None:
        for key, content in documents.items():
            self.cluster.set(key.encode(), json.dumps(content).encode())
        run(self.settings, once=True)

    def docs(self) -> dict[str, Any]:
        found = lake_of(self.settings).table("docs").rows("key, doc, violations", "true")
        return {
            row["key"]: (
                row["doc"],
                row["violations"] and [tuple(each.values()) for each in row["violations"]],
            )
            for row in found
        }


@pytest.fixture
def scene(lakes_in_memory: None, tmp_path: Path) -> Iterator[Scene]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=11)) as cluster:
        yield Scene(cluster, tmp_path)


def test_columns_with_aliases_evolve_with_the_documents(scene: Scene) -> None:
    scene.contract.write_text(CONTRACT)
    scene.run(one={"first name": "Ada", "A": 1, "a": 2, "lines": [{"unit price": 3}]})
    one = {"first_name": "Ada", "a_2": 1, "lines": [{"unit_price": 3}], "a": 2}
    assert scene.docs() == {"one": (one, None)}
    scene.run(two={"first_name": "Bob", "new": True, "lines": [{"unit price": 0.5, "n": 1}]})
    one |= {"lines": [{"unit_price": 3.0, "n": None}], "new": None}
    two = {
        "first_name": None,
        "a_2": None,
        "lines": [{"unit_price": 0.5, "n": 1}],
        "a": None,
        "new": True,
    }
    told = [("$.first_name", "Bob", "no such field")]
    assert scene.docs() == {"one": (one, None), "two": (two, told)}
    assert ANEW not in str(preview(scene.settings))
    scene.run(two={"first name": 7})
    assert scene.docs()["two"] == ({**dict.fromkeys(two), "first_name": "7"}, None)


def test_another_alias_writes_all_rows_anew(scene: Scene) -> None:
    scene.contract.write_text(CONTRACT)
    scene.run(one={"first name": "Ada", "lines": [{"unit price": "x"}]})
    told = [("$.lines[*]['unit price']", "x", "int")]
    one = {"first_name": "Ada", "a_2": None, "lines": [{"unit_price": None}]}
    assert scene.docs() == {"one": (one, told)}
    scene.contract.write_text(CONTRACT.replace('"unit_price"', '"price"'))
    assert ANEW in str(preview(scene.settings))
    scene.run()
    one["lines"] = [{"price": None}]
    assert scene.docs() == {"one": (one, told)}
    assert ANEW not in str(preview(scene.settings))


def test_another_view_of_an_array_writes_no_row_anew(scene: Scene) -> None:
    def arrays() -> dict[str, str]:
        found = arrays_of(lake_of(scene.settings).table("docs").properties())
        return {name: path_text(steps) for name, steps in found.items()}

    scene.contract.write_text(CONTRACT + '"$.lines[*]" = { view = "lines", as = "parts" }\n')
    scene.run(one={"lines": [{"unit price": 1}]})
    assert arrays() == {"lines": "$.parts[*]"}
    one = {"first_name": None, "a_2": None, "parts": [{"unit_price": 1}]}
    assert scene.docs() == {"one": (one, None)}
    scene.contract.write_text(scene.contract.read_text().replace('view = "lines"', 'view = "all"'))
    assert ANEW not in str(preview(scene.settings))
    scene.run()
    assert arrays() == {"all": "$.parts[*]"}
    operations = [each.operation for each in history(lake_of(scene.settings).table("docs"))]
    assert "CREATE OR REPLACE TABLE AS SELECT" not in operations
    scene.run(two={"lines": []})
    assert set(scene.docs()) == {"one", "two"} and arrays() == {"all": "$.parts[*]"}
    scene.contract.write_text(CONTRACT)
    scene.run()
    assert arrays() == {}


def test_an_alias_that_is_a_tables_own_column_is_refused(scene: Scene) -> None:
    scene.contract.write_text(CONTRACT.replace("a_2", "Key"))
    with pytest.raises(
        ConfigError, match=r"default.toml: columns: \$\.A: found the alias 'Key', e"
    ):
        scene.run(one={"A": 1})
    with pytest.raises(ConfigError, match="found the alias 'Key'"):
        preview(scene.settings)

"""How many fields become columns, and which are told: by the types of documents alone."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from dcp.lake.apply.evolution import MOST_COLUMNS, SeenDocuments, compared
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.tables.typed_columns import fingerprint_of, paths_of

NONE = pa.struct([])


def _objects(*levels: str, fields: int) -> StructType:
    kind = StructType([StructField(f"f{number}", LongType()) for number in range(fields)])
    for name in reversed(levels):
        kind = StructType([StructField(name, kind)])
    return kind


@pytest.mark.parametrize("levels", [(), ("a",), ("a", "b", "c")])
@pytest.mark.parametrize("over", [0, 1])
def test_as_many_fields_become_columns_at_any_depth(levels: tuple[str, ...], over: int) -> None:
    seen = SeenDocuments(_objects(*levels, fields=MOST_COLUMNS + over), frozenset())
    found = compared(NONE, [seen], adds=True)
    assert sum(1 for _ in paths_of(found.document)) == MOST_COLUMNS
    expected = [f"$.{'.'.join((*levels, f'f{MOST_COLUMNS}'))}"] if over else []
    assert [str(path) for path in found.unknown] == expected


def test_what_is_in_a_field_that_gets_no_column_takes_no_room() -> None:
    refused = StructField("a b", _objects(fields=MOST_COLUMNS))
    seen = StructType([refused, *_objects(fields=MOST_COLUMNS).fields])
    found = compared(NONE, [SeenDocuments(seen, frozenset())], adds=True)
    assert sum(1 for _ in paths_of(found.document)) == MOST_COLUMNS
    assert [str(path) for path in found.unknown] == ["$['a b']"]


def test_an_object_whose_names_are_data_leaves_others_their_columns() -> None:
    wide = StructField("m", _objects(fields=MOST_COLUMNS + 100))
    seen = StructType([wide, StructField("n", LongType())])
    found = compared(NONE, [SeenDocuments(seen, frozenset())], adds=True)
    assert found.document.field("n").type == pa.int64()
    assert found.document.field("m").type.num_fields == MOST_COLUMNS - 1
    assert len(found.unknown) == 101


def test_without_new_columns_each_field_is_told() -> None:
    seen = SeenDocuments(_objects("a", "b", fields=2), frozenset())
    found = compared(NONE, [seen], adds=False)
    assert (found.document, [str(each) for each in found.unknown]) == (
        NONE,
        ["$.a.b.f0", "$.a.b.f1"],
    )


def test_the_order_of_a_contracts_columns_does_not_matter() -> None:
    def fingerprint(*fields: tuple[str, pa.DataType]) -> str:
        within = pa.list_(pa.map_(pa.string(), pa.struct(fields)))
        document = pa.struct([("a", within), *fields])
        return fingerprint_of(Contract("s.c", ContractMode.FREEZE, document, "here"))

    x, y = ("x", pa.int32()), ("y", pa.string())
    assert fingerprint(x, y) == fingerprint(y, x) != fingerprint(x)

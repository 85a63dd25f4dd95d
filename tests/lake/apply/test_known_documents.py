"""Real kinds of documents: a contract that they fit is proposed, and nothing of them is lost."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dcp.lake.apply.column_growth import grown
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.seen_values import Seen
from dcp.lake.apply.typed_documents import typed_arrays
from dcp.lake.config.contracts import ContractMode, load_contracts
from dcp.lake.query.infer import propose_contract
from dcp.lake.tables.typed_columns import TypedColumns
from dcp.wire.json_text import is_json
from dcp.wire.vocabulary import Datatype
from tests.lake.apply.known_documents import KNOWN, Known

NONE = pa.struct([])
EACH_KIND = pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)


def typed(columns: TypedColumns, documents: list[bytes]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return what the columns hold, and the types by the paths of the violations of each."""
    flags = pa.array([int(Datatype.JSON)] * len(documents), pa.int32())
    doc, violations = typed_arrays(columns, flags, pa.array(documents, pa.binary()))
    told = violations.to_pylist()
    return doc.to_pylist(), [{v["path"]: v["expected"] for v in each or ()} for each in told]


@EACH_KIND
def test_they_fit_the_contract_that_is_proposed_for_them(known: Known, tmp_path: Path) -> None:
    documents = [text.encode() for text in known.texts]
    assert all(map(is_json, documents))
    proposed = propose_contract("a.b", [(text, text.encode()) for text in known.texts])
    assert {each.path: each.kind for each in proposed.columns} == known.columns
    assert not proposed.others
    (tmp_path / "a.toml").write_text(str(proposed))
    [contract] = load_contracts(str(tmp_path)).values()
    columns = TypedColumns(contract.document, "", ContractMode.FREEZE)
    assert typed(columns, documents) == (list(known.docs), [{}] * len(documents))


@EACH_KIND
def test_they_fit_the_columns_that_evolve_from_them(known: Known) -> None:
    documents = [text.encode() for text in known.texts]
    seen = Seen().expect(NONE)
    for document in documents:
        seen.add(parse_object(document))
    columns = TypedColumns(grown(NONE, seen), "", ContractMode.FREEZE)
    made, told = typed(columns, documents)
    assert told == [{}] * len(documents)
    for doc, document in zip(made, documents, strict=True):
        content = parse_object(document)
        assert content is not None
        assert {name for name, value in content.items() if value not in (None, [])} <= doc.keys()

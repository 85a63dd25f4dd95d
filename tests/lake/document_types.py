"""The type of documents that a contract's columns give them."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from dcp.lake.config.contracts import load_contracts
from dcp.lake.config.settings_document import toml_value


def document_type(columns: Mapping[str, Any]) -> pa.StructType:
    """Return the type for columns by path, as a contract's file has them."""
    lines = ['collection = "_default._default"', 'mode = "evolve"', "[columns]"]
    lines += [f"{toml_value(path)} = {_entry(told)}" for path, told in columns.items()]
    with TemporaryDirectory() as folder:
        Path(folder, "a_test.toml").write_text("\n".join(lines), "utf-8")
        [contract] = load_contracts(folder).values()
    return contract.document


def _entry(told: str | Mapping[str, str]) -> str:
    if isinstance(told, str):
        return toml_value(told)
    return f"{{ {', '.join(f'{name} = {toml_value(each)}' for name, each in told.items())} }}"

"""``dcplake schema``: contracts of typed columns."""

from enum import StrEnum
from typing import Annotated, Final

from typer import Argument, Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say

EPILOG: Final = """\
infer reads documents of a collection's table and prints a contract that fits most of them, with
the number of values that would not. Put it into the folder that apply.contracts_folder names, and
change it as you like (docs/typed-columns.md)."""


class _Action(StrEnum):
    INFER = "infer"


def run(
    action: Annotated[_Action, Argument(help="infer: propose a contract")],
    collection: Annotated[
        str, Argument(help="the collection, as inventory.hotel")
    ] = "_default._default",
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    documents: Annotated[
        int, Option("--documents", min=1, help="how many documents are read at most")
    ] = 10_000,
) -> int:
    """Infer and print."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.query.infer import infer_contract

    assert action is _Action.INFER
    with opened_lake(settings_from(config, lake, overrides)) as tables:
        say(str(infer_contract(tables, collection, documents)))
    return 0

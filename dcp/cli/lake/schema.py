"""``dcplake schema``: contracts of typed columns."""

from typing import Annotated, Final, Literal

from typer import Argument, Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say

EPILOG: Final = """\
infer reads documents of a collection's table and prints a contract that fits most of them, with
the number of values that would not, and with an example where values are of several kinds. Put it
into the folder that apply.contracts_folder names (--out does), and change it as you like
(docs/howto/typed-columns.md)."""


def run(
    action: Annotated[Literal["infer"], Argument(help="infer: propose a contract")],
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
    out: Annotated[
        bool, Option("--out", help="write it into apply.contracts_folder, as COLLECTION.toml")
    ] = False,
) -> int:
    """Infer and print, or write."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.query.infer import file_of_new_contract, infer_contract

    assert action == "infer"
    settings = settings_from(config, lake, overrides)
    folder = settings.apply.contracts_folder
    file = file_of_new_contract(folder, collection) if out else None
    with opened_lake(settings) as tables:
        proposed = str(infer_contract(tables, collection, documents))
    if file is None:
        say(proposed)
        return 0
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", encoding="utf-8") as opened:
        opened.write(f"{proposed}\n")
    say(f"{file}: written; with the next apply all rows of {collection} get these columns")
    return 0

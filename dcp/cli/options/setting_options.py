"""Options of a command that are settings: names, types, bounds and words come from the setting."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from dcp.cli.options.values import byte_count_option, number_option, seconds_option
from dcp.setting_keys import Section

Run = Callable[..., int]


def takes_settings(section: type[Section], *names: str, **others: str) -> Callable[[Run], Run]:
    """Give a command an option for each named setting of a section.

    ``others`` are options with another name than their setting. The command's parameter
    ``settings``, in whose place the options stand, is a mapping of the values by their settings'
    names.
    """
    by_option = dict(zip(names, names, strict=True)) | others
    known, types = {each.name: each for each in fields(section)}, get_type_hints(section)

    def parameter(option: str, setting: Field[Any]) -> inspect.Parameter:
        default = inspect.Parameter.empty if setting.default is MISSING else setting.default
        kind: Any = types[setting.name]
        annotation = Annotated[kind, _option(kind, setting)]
        return inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    made = [parameter(option, known[name]) for option, name in by_option.items()]

    def with_settings(run: Run) -> Run:
        @wraps(run)
        def command(**options: Any) -> int:
            settings = {name: options.pop(option) for option, name in by_option.items()}
            return run(settings=settings, **options)

        own = inspect.signature(run).parameters.values()
        all_options = (made if each.name == "settings" else [each] for each in own)
        signature = inspect.Signature([*chain.from_iterable(all_options)])
        command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
        return command

    return with_settings


def _option(kind: Any, setting: Field[Any]) -> Any:
    text, least, most = (setting.metadata[name] for name in ("text", "least", "most"))
    meaning = (text[0].lower() + text[1:]).removesuffix(".")
    if setting.metadata["unit"] == "bytes":
        return byte_count_option(meaning, least, most)
    if setting.metadata["unit"] == "seconds":
        return seconds_option(meaning)
    if kind in (Path, Path | None):
        return Option(metavar="FOLDER", help=meaning)
    if kind is not int:
        return Option(help=meaning)
    bounds = "" if most is None else f" ({least} to {most})"
    return number_option(meaning + bounds, least, most)

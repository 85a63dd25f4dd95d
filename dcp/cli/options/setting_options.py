"""Options of a command that are settings: names, types, bounds and words come from the setting.

Options that are no settings come in groups: a dataclass whose fields are options.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from dcp.cli.options.values import number_option, seconds_option
from dcp.setting_keys import Section

Run = Callable[..., int]


def takes_settings(section: type[Section]) -> Callable[[Run], Run]:
    """Give a command an option for each setting of the section that names one (``key``).

    The command gets the settings' values by their names, as its parameter ``settings``. A parameter
    whose type is a dataclass is a group: each field of the dataclass is an option of the command.
    """
    types = get_type_hints(section)
    of_settings = [
        _parameter(each, Annotated[types[each.name], _option(types[each.name], each)])
        for each in fields(section)
        if each.metadata.get("option")
    ]

    def with_settings(run: Run) -> Run:
        made: dict[str, Callable[..., Any]] = {}
        options: dict[str, list[inspect.Parameter]] = {}
        for name, own in inspect.signature(run).parameters.items():
            if name == "settings":
                made[name], options[name] = dict, of_settings
            elif isinstance(group := own.annotation, type) and is_dataclass(group):
                made[name], options[name] = group, _options_of(group)
            else:
                options[name] = [own]

        @wraps(run)
        def command(**values: Any) -> int:
            for name, make in made.items():
                values[name] = make(**{each.name: values.pop(each.name) for each in options[name]})
            return run(**values)

        signature = inspect.Signature([each for of_one in options.values() for each in of_one])
        command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
        return command

    return with_settings


def _options_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [_parameter(each, types[each.name]) for each in fields(group)]


def _parameter(source: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if source.default is MISSING else source.default
    return inspect.Parameter(
        source.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _option(kind: Any, setting: Field[Any]) -> Any:
    option = _option_of_kind(kind, setting)
    option.param_decls = (setting.metadata["option"],)
    return option


def _option_of_kind(kind: Any, setting: Field[Any]) -> Any:
    meaning, least, most = _meaning(setting), setting.metadata["least"], setting.metadata["most"]
    if setting.metadata["unit"] == "bytes":
        return number_option(meaning, least, most, is_bytes=True)
    if setting.metadata["unit"] == "seconds":
        return seconds_option(meaning, least or 0, most)
    if kind in (Path, Path | None):
        return Option(metavar="FOLDER", help=meaning)
    if kind is not int:
        return Option(help=meaning)
    bounds = "" if most is None else f" ({least} to {most})"
    return number_option(meaning + bounds, least, most)


def option_of(section: type[Section], name: str, metavar: str | None = None) -> Any:
    """Return an option that gives a setting, in the setting's words, under its parameter's name."""
    (setting,) = (each for each in fields(section) if each.name == name)
    return Option(metavar=metavar, help=_meaning(setting))


def _meaning(setting: Field[Any]) -> str:
    text: str = setting.metadata["text"]
    return (text[0].lower() + text[1:]).removesuffix(".")

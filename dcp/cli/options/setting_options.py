"""Options of a command that are settings: names, types, bounds and words come from the setting."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

from typer import BadParameter, Option

from dcp.cli.options.values import number_option, seconds_option
from dcp.errors import ConfigError
from dcp.setting_keys import Section, option_name, shown_settings


def takes_settings(run: Callable[..., int]) -> Callable[..., int]:
    """Give a command an option for each setting that names one (``key``) of its sections.

    A parameter whose type is a section is such a section. A parameter of the type
    ``Annotated[Mapping[str, Any], SECTION]`` has the values of that section's options, by name.
    """
    makers: dict[str, tuple[Callable[..., Any], type[Section]]] = {}
    options: list[inspect.Parameter] = []
    for name, own in inspect.signature(run).parameters.items():
        if (maker := _maker(own.annotation)) is None:
            options.append(own)
        else:
            makers[name] = maker
            options += _options_of(maker[1])

    @wraps(run)
    def command(**given: Any) -> int:
        for name, (make, section) in makers.items():
            given[name] = make(**_values_of(section, given))
        return run(**given)

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # typer's
    return command


def _maker(annotation: Any) -> tuple[Callable[..., Any], type[Section]] | None:
    """Return what makes a parameter from values, and their section; None: it has no section."""
    found = [(annotation, annotation), *((dict, each) for each in get_args(annotation)[1:])]
    for make, section in found:
        if isinstance(section, type) and issubclass(section, Section):
            return make, section
    return None


def _options_of(section: type[Section]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(section)
    for each in shown_settings(section):
        if each.metadata["parts"]:
            yield from _options_of_parts(each, types[each.name])
        elif each.metadata["option"]:
            kind = str if each.metadata["parse"] else types[each.name]
            option = _named(_option(types[each.name], each), each.metadata["option"])
            yield _parameter(each.name, each.default, Annotated[kind, option])


def _options_of_parts(setting: Field[Any], kind: Any) -> Iterator[inspect.Parameter]:
    """Return the flag, if there is one, and the options of the parts.

    Each part says that it implies the flag. Without a flag the first says what the setting means.
    """
    flag, hint = setting.metadata["option"], _meaning(setting)
    if flag:
        yield _parameter(setting.name, False, Annotated[bool, Option(flag, help=hint)])
        hint = f"implies {flag}"
    section = _section_in(kind)
    types, known = get_type_hints(section), {each.name: each for each in fields(section)}
    for part, told in setting.metadata["parts"].items():
        words, _, own = told.partition(": ")
        meaning = "; ".join(filter(None, (own or _meaning(known[part]), hint)))
        option = _named(Option(help=meaning), words)
        yield _parameter(f"{setting.name}_{part}", None, Annotated[types[part] | None, option])
        hint = hint if flag else ""


def _values_of(section: type[Section], given: dict[str, Any]) -> dict[str, Any]:
    """Take the values of a section's options from ``given``."""
    types, values = get_type_hints(section), {}
    for each in shown_settings(section):
        if each.metadata["parts"]:
            values[each.name] = _made_of_parts(each, types[each.name], given)
        elif each.metadata["option"]:
            values[each.name] = given.pop(each.name)
    return values


def _made_of_parts(setting: Field[Any], kind: Any, given: dict[str, Any]) -> Section | None:
    parts = setting.metadata["parts"]
    is_wanted = given.pop(setting.name, False)
    values = {part: given.pop(f"{setting.name}_{part}") for part in parts}
    values = {part: value for part, value in values.items() if value is not None}
    if not (is_wanted or values):
        return None
    try:
        return _section_in(kind)(**values)
    except ConfigError as error:
        options = ", ".join(map(option_name, parts.values()))
        raise ConfigError(f"{options}: {error}") from None


def _section_in(kind: Any) -> type[Section]:
    """Return the section of a setting that may be None."""
    found: type[Section] = get_args(kind)[0]
    return found


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=annotation,
    )


def _named(option: Any, words: str) -> Any:
    """Give an option its name, and the word for its value if there is one."""
    name, _, metavar = words.partition(" ")
    option.param_decls, option.metavar = (name,), metavar or option.metavar
    return option


def _option(kind: Any, setting: Field[Any]) -> Any:
    meaning, least, most = _meaning(setting), setting.metadata["least"], setting.metadata["most"]
    if parse := setting.metadata["parse"]:
        return Option(parser=_parser(parse), help=meaning)
    if setting.metadata["unit"] == "bytes":
        return number_option(meaning, least, most, is_bytes=True)
    if setting.metadata["unit"] == "seconds":
        return seconds_option(meaning, least or 0, most)
    if kind not in (int, int | None):
        return Option(help=meaning)
    bounds = "" if most is None else f" ({least} to {most})"
    return number_option(meaning + bounds, least, most)


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise BadParameter(str(error)) from None

    return parsed


def option_of(section: type[Section], name: str, metavar: str | None = None) -> Any:
    """Return an option that gives a setting, in the setting's words, under its parameter's name."""
    (setting,) = (each for each in fields(section) if each.name == name)
    return Option(metavar=metavar, help=_meaning(setting))


def _meaning(setting: Field[Any]) -> str:
    text: str = setting.metadata["text"]
    return (text[0].lower() + text[1:]).removesuffix(".")

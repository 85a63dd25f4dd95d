"""Says how dcplake is installed: from a checkout or a wheel.

No package index has dcplake, so anybody could publish something under its name. No message and no
page may suggest an installation from there.
"""

from typing import Final

from dcp import __version__

WHEEL: Final = f"dcplake-{__version__}-py3-none-any.whl"
"""The file that ``pip wheel --no-deps .`` writes in a checkout."""


def how_to_install(extra: str = "") -> str:
    """Return the commands, for the end of a message; ``extra`` is one of ``pyproject.toml``."""
    if not extra:
        return f"`make setup` or `pip install .` in a checkout of dcplake, or `pip install {WHEEL}`"
    return (
        f"`pip install '.[{extra}]'` in a checkout of dcplake, or `pip install '{WHEEL}[{extra}]'`"
    )

"""User texts with placeholders: only named ones, filled in unchanged, so that no text can blow itself up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Formatter

from rllib_lmgame.base.errors import ConfigError


def check_placeholders(text: str, names: Collection[str], path: str) -> None:
    """Refuse all but ``{name}`` with one of ``names``, and doubled braces. Raises: ConfigError: names ``path``.

    ``str.format`` also obeys widths, conversions and attributes (``{name:999999999}``, ``{name!r}``, ``{name.x}``).
    """
    allowed = " and ".join(f"{{{name}}}" for name in names)
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(
            path, f"{text!r} cannot be filled in ({error}); {allowed} is all it may hold, braces are written twice"
        ) from error
    for _, name, form, conversion in parts:
        if name is not None and (name not in names or form or conversion):
            written = "{" + name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
            raise ConfigError(path, f"{text!r} cannot be filled in: it holds {written}; {allowed} is all it may hold")


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """``text``, which :func:`check_placeholders` has let pass, with ``values`` in the places of their names."""
    return "".join(
        literal + ("" if name is None else str(values[name])) for literal, name, _, _ in Formatter().parse(text)
    )

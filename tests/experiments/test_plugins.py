"""What is brought along takes what it will be given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from rllib_lmgame.base import registry as plugins
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import limits
from rllib_lmgame.base.registry import Registry, check_arguments

PAIR = np.zeros(2)


def report(
    trials: Any,
    path: Path = Path(),
    *,
    share: Annotated[float | None, limits(gt=0, le=1)] = 0.5,
    sizes: Annotated[tuple[int, ...], limits()] = (),
    words: dict[str, str] | None = None,
    name: str = None,  # type: ignore[assignment]  # noqa: RUF013
    others: Any = PAIR,
) -> None:
    """A report of somebody's."""


class Callback:
    """A class of somebody's."""

    def __init__(self, every: int = 1, **others: Any) -> None:
        self.every = every


def test_values_that_fit_are_given_as_their_type() -> None:
    given = {"share": 1, "sizes": [2, 3.0], "words": {"a": "b"}, "path": "left/alone", "name": None, "others": 3}
    checked = check_arguments(report, given, "report", before=1)
    assert checked == given | {"share": 1.0, "sizes": (2, 3)} and isinstance(checked["share"], float)
    assert check_arguments(Callback, {"every": 2, "more": object}, "callbacks[0]") == {"every": 2, "more": object}


@pytest.mark.parametrize(
    ("called", "given", "key", "words"),
    [
        (report, {"share": 0}, "it.share", "greater than 0"),
        (report, {"share": True}, "it.share", "a valid number, got the truth value True"),
        (report, {"sizes": [1, "two"]}, "it.sizes[1]", "a valid integer"),
        (report, {"trials": 3}, "it", "multiple values for argument 'trials'"),
        (report, {"pth": "x"}, "it", "'pth'"),
        (Callback, {"every": "day"}, "it.every", "a valid integer"),
    ],
)
def test_what_does_not_fit_is_named(called: Any, given: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_arguments(called, given, "it", before=1 if called is report else 0)
    assert caught.value.path == key


@pytest.mark.parametrize(
    "registry", [r for r in vars(plugins).values() if isinstance(r, Registry)], ids=lambda r: r.what
)
def test_every_name_stands_for_a_part(registry: Registry) -> None:
    assert all(registry[name] is not None for name in registry)
    with pytest.raises(ConfigError, match=f"no {registry.what} `nothing-like-it`") as caught:
        registry.find("nothing-like-it")
    assert caught.value.path == registry.key

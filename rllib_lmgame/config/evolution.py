"""Options of evolution by imitating what succeeded. Importing this loads neither Ray nor torch."""

from __future__ import annotations

from rllib_lmgame.base.group import Group, option
from rllib_lmgame.base.trust import is_number

BASE, LAST = "base", "last"


class EvolutionOptions(Group):
    """The ``agentevol`` section: what is explored and kept, and what imitation begins from."""

    iterations: int = option(4, "Times that the policy explores and imitates; then the run is done.", ge=1)
    levels: int = option(256, "Levels that it explores each time.", ge=1, le=1e6)
    new_levels: bool = option(False, "Others each time; else always the same.")
    samples_per_level: int = option(3, "Episodes on each of them.", ge=1, le=10_000)
    min_return: float | dict[str, float] | None = option(
        None,
        "Least return of what is kept, or that of each game; null, and games without one: what the game calls a "
        "success.",
        stranger=is_number,
    )
    one_per_level: str | None = option(
        "first",
        "Of a level's successes the `first` is kept, or the `best`, of the highest return; null: all.",
        choices=("first", "best"),
    )
    top_share: float | None = option(
        None,
        "Share of what was played in each game that is kept in place of successes: the highest returns.",
        gt=0,
        le=1,
    )
    accumulate: bool = option(False, "What was kept before stays; else each time counts alone.")
    keep_original: bool = option(True, "The data of `supervised` is imitated again each time, beside what was kept.")
    original_episodes: int = option(
        1024, "Episodes of `supervised.expert` that are that data, where it has no files; 0: none.", ge=0, le=1e6
    )
    start: str = option(
        BASE,
        "What imitation begins from: the run's first weights (`base`), or those it has come to (`last`).",
        choices=(BASE, LAST),
    )
    epochs: int = option(1, "Passes over the data each time.", ge=1, le=1_000)

    def goes_by_return(self, game: str) -> bool:
        """Whether returns say what is kept of a game, and not successes alone."""
        least = self.min_return
        return self.top_share is not None or (game in least if isinstance(least, dict) else least is not None)

"""The game of ``GAME`` for TRL's GRPOTrainer.

    from NAME import Game, levels
    from trl import GRPOConfig, GRPOTrainer

    GRPOTrainer(model, args=GRPOConfig(...), train_dataset=levels(512), environment_factory=Game).train()

The model replies by calling the tool `act`, so its chat template must know tools.
"""

from contextlib import closing
from typing import Any

from rllib_lmgame.policies.one_seat import OneSeat

GAME = "lmgame/FrozenLake-v0"
OPTIONS: dict[str, Any] = {}
OTHERS: dict[str, str] = {}


class Game:
    """A game after another. TRL keeps as many as it plays at once; the reward is the sum of the game's."""

    def __init__(self) -> None:
        self._game = OneSeat(GAME, OPTIONS, OTHERS)

    def reset(self, seed: int = 0, **row: Any) -> str:
        """Begin the level of a row's `seed`; what the player sees, which ends the prompt."""
        return self._game.reset(int(seed))

    def act(self, action: str) -> str:
        """Reply in the game.

        Args:
            action: The reply, as the rules ask for it.

        Returns:
            What the player sees next.
        """
        seen = self._game.reply(action)
        return f"{seen}\nThe game is over." if self._game.over else seen

    def get_reward(self) -> float:
        """What was earned so far."""
        return self._game.total


def levels(count: int, first: int = 0) -> Any:
    """A data set of so many levels, by their seeds."""
    from datasets import Dataset

    with closing(OneSeat(GAME, OPTIONS, OTHERS)) as game:
        told = f"{game.rules}\nReply by calling the tool `act`, until the game is over.".strip()
    prompt = [{"role": "system", "content": told}, {"role": "user", "content": ""}]
    return Dataset.from_list([{"prompt": prompt, "seed": seed} for seed in range(first, first + count)])

"""What a configuration with rollouts from states is refused for, before anything starts."""

from __future__ import annotations

import gymnasium
import pytest

from rllib_lmgame.algorithms.grpo import LMGameGRPOConfig
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.algorithms.validation import PolicyFacts, RunFacts, state_rollouts
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import text_space

VINE = {"type": "vine", "rollouts": 2}


class Judge:
    """Of one's own, who may decide as it likes."""

    def decide(self, topic, speeches) -> float:
        return 1.0


class Echo(gymnasium.Env[str, str]):
    """A game that knows nothing of this package."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = text_space()


def config_of(env: str = "lmgame/Sokoban-v0", **settings) -> LMGamePPOConfig:
    settings["token_ppo"] = {"advantage_estimator": VINE, **settings.get("token_ppo", {})}
    return LMGamePPOConfig().update_from_dict({"env": env, **settings})


def test_it_needs_neither_a_critic_nor_groups() -> None:
    config = config_of()
    config.validate()
    assert state_rollouts(config) == {"player": 2}
    assert not PolicyFacts(config, "player").needs_critic and not RunFacts(config).compares
    without = {"text_rollouts": {"group_size": 1}, "token_ppo": {"advantage_estimator": "vine"}}
    LMGameGRPOConfig().update_from_dict({"env": "lmgame/Sokoban-v0", **without}).validate()
    assert state_rollouts(LMGamePPOConfig().update_from_dict({"env": "lmgame/Sokoban-v0"})) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "lmgame/CodeExecution-v0"}, "plays on from .* lmgame/CodeExec"),
        (
            {"env": "lmgame/Debate-v0", "env_config": {"judge": f"{__name__}:Judge"}},
            "lmgame/Debate-v0 with these options",
        ),
        ({"env": None, "games": ["lmgame/Sokoban-v0", f"{__name__}:Echo"]}, ":Echo with these options"),
    ],
)
def test_games_that_cannot_be_played_on_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config_of(**settings).validate()
    assert caught.value.path == "config.token_ppo.advantage_estimator"

"""RLlib's callbacks in an env runner.

An episode is one ``MultiAgentEpisode`` from ``on_episode_created`` to the learner. During play it has texts, rewards
and infos, as in RLlib's own env runners; at its last step it gets the contents of
:func:`~rllib_lmgame.rollouts.episodes.to_multi_agent_episode`, with tokens and log-probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils import force_list

from rllib_lmgame.base.plugin import asking
from rllib_lmgame.rollouts.episodes import module_of_agent, to_multi_agent_episode
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.session import GameSession
    from rllib_lmgame.rollouts.plans import EpisodePlan
    from rllib_lmgame.rollouts.play import GameInPlay, PlayedEpisode
    from rllib_lmgame.rollouts.records import GameConfig

EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
HOOKS = ("on_environment_created", *EPISODE_HOOKS, "on_sample_end")
"""Callbacks of an env runner."""


class Hooks:
    """Calls the callbacks of an env runner; hooks that are not overridden cost nothing."""

    def __init__(self, runner: EnvRunner) -> None:
        config: Any = runner.config
        self._runner = runner
        self._objects = [made() for made in force_list(config.callbacks_class)]
        self._functions = {hook: getattr(config, f"callbacks_{hook}") for hook in HOOKS}
        self._heard = {hook for hook in HOOKS if self._functions[hook] or any(map(_overrides(hook), self._objects))}
        self._in_play: dict[str, _Shown] = {}

    def hears(self, *hooks: str) -> bool:
        """Whether one of ``hooks`` is overridden."""
        return not self._heard.isdisjoint(hooks)

    def opened(self, game: GameConfig, session: GameSession) -> None:
        """Called when a game was made."""
        runner: Any = self._runner
        context = EnvContext(
            dict(game.env_config), worker_index=runner.worker_index, num_workers=runner.num_workers, remote=False
        )
        self._call("on_environment_created", env=_env_of(session), env_context=context)

    def created(self, plan: EpisodePlan, session: GameSession) -> None:
        """Called before an episode's reset."""
        if self.hears(*EPISODE_HOOKS):
            shown = self._in_play[plan.episode_id] = _Shown(plan)
            self._tell("on_episode_created", shown, session)

    def went_on(self, game: GameInPlay) -> None:
        """Called after a reset or step."""
        shown = self._in_play.get(game.plan.episode_id)
        if shown is not None:
            shown.go_on(game)
            self._tell("on_episode_step" if game.steps else "on_episode_start", shown, game.session)

    def ended(self, played: PlayedEpisode, session: GameSession) -> None:
        """Called when an episode was played to its end."""
        shown = self._in_play.get(played.plan.episode_id)
        if shown is not None:
            shown.episode = to_multi_agent_episode(played, shown.episode)
            if len(played.steps) > shown.steps:  # Else it was broken off before a step that was not taken.
                self._tell("on_episode_step", shown, session)
            self._tell("on_episode_end", shown, session)

    def episode_of(self, played: PlayedEpisode) -> MultiAgentEpisode:
        """RLlib's episode, the same object that callbacks have seen."""
        shown = self._in_play.get(played.plan.episode_id)
        if shown is None:
            return to_multi_agent_episode(played)
        for part in shown.episode.agent_episodes.values():
            if CUSTOM_DATA_KEY in part.custom_data:
                part.custom_data[CUSTOM_DATA_KEY].logged = played.logged
        return shown.episode

    def sampled(self, episodes: list[MultiAgentEpisode]) -> list[dict[str, Any]]:
        """Called with played episodes; returns what callbacks logged, for ``MetricsLogger.aggregate`` on the driver."""
        self._call("on_sample_end", samples=episodes)
        return [self._runner.metrics.reduce()] if self._heard else []

    def forget_all(self) -> None:
        """Forget all episodes."""
        self._in_play.clear()

    def _tell(self, hook: str, shown: _Shown, session: GameSession) -> None:
        self._call(
            hook, episode=shown.episode, env=_env_of(session), env_index=shown.index, rl_module=self._runner.module
        )

    def _call(self, hook: str, **given: Any) -> None:
        if hook in self._heard:
            with asking(hook, "config.callbacks"):
                make_callback(
                    hook,
                    self._objects,
                    self._functions[hook],
                    kwargs={"env_runner": self._runner, "metrics_logger": self._runner.metrics, **given},
                )


class _Shown:
    """The episode of a game in play."""

    def __init__(self, plan: EpisodePlan) -> None:
        modules = {agent: assignment.module_id for agent, assignment in plan.assignments.items()}
        self.index = plan.index
        self.steps = 0
        self.episode = MultiAgentEpisode(
            id_=plan.episode_id, agent_module_ids=modules, agent_to_module_mapping_fn=module_of_agent
        )
        self._waiting: set[str] = set()
        """Agents that have acted and have not seen an observation since."""

    def go_on(self, game: GameInPlay) -> None:
        episode, ends = self.episode, game.ends
        seen = {agent: view.text for agent, view in game.views.items() if agent not in ends}
        if not game.steps:
            episode.add_env_reset(observations=seen)
            return
        step, self.steps = game.steps[-1], len(game.steps)
        over = {agent: end.terminated for agent, end in ends.items() if end.step == len(game.steps)}
        seen |= {agent: game.final[agent].text for agent in over}
        self._waiting |= step.actions.keys()
        seen = {agent: text for agent, text in seen.items() if self._waits(agent)}
        self._waiting -= seen.keys()
        episode.add_env_step(
            observations=seen,
            actions=step.actions,
            rewards=self._of_those_in_play(dict.fromkeys(step.actions, 0.0) | step.rewards),
            infos={agent: step.infos.get(agent, {}) for agent in seen},
            terminateds={agent: terminated for agent, terminated in over.items() if agent in seen},
            truncateds={agent: not terminated for agent, terminated in over.items() if agent in seen},
        )

    def _waits(self, agent: str) -> bool:
        return agent in self._waiting or agent not in self.episode.agent_episodes

    def _of_those_in_play(self, rewards: dict[str, float]) -> dict[str, float]:
        """Rewards without those of agents that are out of the game, which RLlib refuses."""
        out = {agent for agent, part in self.episode.agent_episodes.items() if part.is_done}
        return {agent: reward for agent, reward in rewards.items() if agent not in out}


def _overrides(hook: str) -> Any:
    return lambda found: getattr(type(found), hook, None) is not getattr(RLlibCallback, hook)


def _env_of(session: GameSession) -> Any:
    return getattr(session, "env", session)

"""Whether the first prompts of games leave room for a reply, as a policy's own tokenizer counts it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.rollouts.records import GameConfig

_LEVELS = 4
"""Levels of each game that are looked at."""


def check_prompts(checked: Sequence[CheckedExperiment]) -> None:
    """Look at the beginnings of the games of each experiment, in every seat whose policy's tokenizer is on this machine
    or is made for a tiny model; where an expert is learnt from, its first reply is looked at too.

    Raises:
        ConfigError: if a prompt leaves no room for a reply, saying which context would.
    """
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        with experiment.spec.source.attached():
            seen: set[str] = set()
            for config in experiment.configs:
                games = (
                    *config.training_games(),
                    *(config.games_for_evaluation() if config.evaluation_interval else ()),
                )
                options = [config.language_model_of(policy) for policy in config.language_model_policies()]
                what = repr((games, options, config.supervised_options, config.seat_mapping_spec))
                if what not in seen:
                    seen.add(what)
                    _check_config(config, {game.key: game for game in games}.values())


def _check_config(config: Any, games: Iterable[GameConfig]) -> None:
    from rllib_lmgame.rollouts.game_calls import run_to_end
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    chats = _Chats(config)
    for game in games:
        try:
            run_to_end(_check_game(game, config, chats))
        except EpisodeFailed:  # Of a game that fails at times its episodes are dropped, and counted.
            continue


class _Chats:
    """Chat formats of policies; ``None`` of one whose tokenizer is not here."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._chats: dict[str, Any] = {}

    def of(self, policy: str) -> Any:
        """That of one policy."""
        if policy not in self._chats:
            from rllib_lmgame.policies.chat.format import ChatFormat

            tokenizer = self._tokenizer(policy)
            options = self.config.language_model_of(policy)
            self._chats[policy] = None if tokenizer is None else ChatFormat(tokenizer, options)
        return self._chats[policy]

    def _tokenizer(self, policy: str) -> Any:
        from rllib_lmgame.algorithms.base import tiny_corpus
        from rllib_lmgame.policies.model.files import load_tokenizer, model_directory, tokenizer_source
        from rllib_lmgame.policies.model.tiny import build_tokenizer, check_shape
        from rllib_lmgame.policies.options import TINY_MODEL

        options = self.config.language_model_of(policy)
        if options.model == TINY_MODEL and options.tokenizer is None:
            shape = check_shape(options.tiny, "config.language_model.tiny")
            return build_tokenizer(tiny_corpus(self.config), shape.vocab_size, shape.max_position_embeddings)
        directory = model_directory(options.model)
        try:
            return load_tokenizer(directory, options, local_files_only=True)
        except ConfigError:
            if Path(tokenizer_source(options, directory)).is_dir():
                raise
            return None  # It is fetched when the run begins.


async def _check_game(game: GameConfig, config: Any, chats: _Chats) -> None:
    from rllib_lmgame.policies.options import LANGUAGE_MODEL
    from rllib_lmgame.policies.scripted import make_scripted_player
    from rllib_lmgame.rollouts.game_calls import GameCalls, abandon, open_session
    from rllib_lmgame.rollouts.line_ups import LineUps
    from rllib_lmgame.rollouts.plans import plan_episodes
    from rllib_lmgame.rollouts.seats import ExpertReplies, LanguageModelSeat

    timeout_s = config.text_rollout_options.env_step_timeout_s
    session = await open_session(game, timeout_s)
    call = GameCalls(session.game_id, session.trusted, timeout_s)
    line_ups, stage = LineUps(config), config.supervised_options
    taught = stage is not None and stage.data is None and game in config.training_games()
    expert = ExpertReplies(make_scripted_player(stage.expert), random.Random(0)) if taught else None
    try:
        for plan in plan_episodes(_LEVELS, run_seed=config.seed or 0, purpose="train", iteration=0):
            line_up = line_ups.line_up(plan, session.roles)
            await call("reset", session.reset, plan.seed)
            for agent in await call("to_act", session.to_act):
                policy = line_up[agent].module_id
                if line_up[agent].player != LANGUAGE_MODEL or (chat := chats.of(policy)) is None:
                    continue
                seat = LanguageModelSeat(
                    agent, session.roles[agent], policy, chat=chat, instructions=session.instructions
                )
                observation = await call("observe", session.observe, agent)
                prompt = seat.conversation.prompt(observation, None)
                if prompt.max_tokens < 1:
                    raise seat.out_of_tokens(session, prompt, 1)
                if expert is not None:
                    await expert.reply(seat, session, observation, prompt, call)
    finally:
        abandon(session)

"""Whether the first prompts of games leave room for a reply, as a policy's own tokenizer counts it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.registry import game_spec, make_session
from rllib_lmgame.experiments.checks.check import CheckedExperiment
from rllib_lmgame.experiments.checks.datasets import begins_with_expert, check_data, data_of
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.options import LANGUAGE_MODEL, TINY_MODEL
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.records import GameConfig

BUDGET_S = 60.0
"""Seconds that the games may take, all together."""
LEVELS = 8
"""Levels of a game that are tried until one begins."""


def check_prompts(checked: Sequence[CheckedExperiment]) -> None:
    """Check that the first prompts of each game fit, in every seat whose tokenizer is on this machine; and the data.

    A tiny model's tokenizer is made from texts of quick games. The shortest legal action, an expert's first reply and
    what ``constrained_decoding`` allows are written as replies too. Games that there is no time for are left out.
    Raises: ConfigError: if a prompt leaves no room for a reply, a game cannot begin, or data cannot be learnt.
    """
    from rllib_lmgame.rollouts.game_calls import run_to_end
    from rllib_lmgame.rollouts.seats import EpisodeFailed

    deadline, seen = time.monotonic() + BUDGET_S, set[str]()
    for experiment in checked:
        if not experiment.algorithm.own:
            continue
        with experiment.spec.source.attached():
            for config in experiment.configs:
                played = config.games_for_evaluation() if config.evaluation_interval else ()
                games = (*config.training_games(), *played)
                models = [config.language_model_of(policy) for policy in config.language_model_policies()]
                limits = (config.row_limits(), config.run.text_rollouts.constrained_decoding)
                expert = config.run.supervised_stage and config.run.supervised_stage.expert
                what = repr((games, models, limits, expert, data_of(config), config.run.policy_mapping_fn))
                if what in seen:  # A grid over learning rates is looked at once.
                    continue
                seen.add(what)
                chats = _Chats(config, deadline)
                there = [game for game in games if game.key not in experiment.missing]
                for game in {f"{game.key}|{game.language_model!r}": game for game in there}.values():
                    if (chats.any() or not game_spec(game.env).own) and not chats.is_late():
                        with suppress(EpisodeFailed, TimeoutError):  # A game that fails at times
                            run_to_end(asyncio.wait_for(_check_game(game, chats), deadline - time.monotonic()))
                check_data(config, chats.of)


class _Chats:
    """Chat formats of policies; ``None`` of one whose tokenizer is not here, or takes slow games to make."""

    def __init__(self, config: Any, deadline: float) -> None:
        self.config, self.deadline = config, deadline
        self._chats: dict[tuple[str, str], Any] = {}

    def is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    def of(self, policy: str, game: GameConfig | None = None) -> Any:
        """That of one policy in one game."""
        key = (policy, "" if game is None else repr(game.language_model))
        if key not in self._chats:
            from rllib_lmgame.policies.chat.format import ChatFormat

            tokenizer = self._tokenizer(policy)
            options = self.config.language_model_of(policy, game)
            self._chats[key] = None if tokenizer is None else ChatFormat(tokenizer, options)
        return self._chats[key]

    def any(self) -> bool:
        """Whether there is one at all: else no game has to be played."""
        return any(self.of(policy) is not None for policy in self.config.language_model_policies())

    @cached_property
    def _corpus(self) -> list[str] | None:
        """Texts that tiny models' tokenizers are made of, if they take no long time to play."""
        from rllib_lmgame.algorithms.models import corpus_games, tiny_corpus

        slow = any(self.is_late() or not _is_quick(game) for game in corpus_games(self.config))
        return None if slow else tiny_corpus(self.config)

    def _tokenizer(self, policy: str) -> Any:
        from rllib_lmgame.policies.model.files import load_tokenizer, model_directory, tokenizer_source
        from rllib_lmgame.policies.model.tiny import build_tokenizer, check_shape

        options = self.config.language_model_of(policy)
        if options.model == TINY_MODEL and options.tokenizer is None:
            shape = check_shape(options.tiny, "config.language_model.tiny")
            if self._corpus is None:
                return None
            return build_tokenizer(self._corpus, shape.vocab_size, shape.max_position_embeddings)
        directory = model_directory(options.model)
        try:
            return load_tokenizer(directory, options, local_files_only=True)
        except ConfigError:
            if Path(tokenizer_source(options, directory)).is_dir():
                raise
            return None  # It is fetched when the run begins.


def _is_quick(game: GameConfig) -> bool:
    from rllib_lmgame.rollouts.game_calls import abandon

    if not game_spec(game.env).own:
        return False
    session = make_session(game.env, dict(game.env_config))
    abandon(session)
    return session.trusted


def _check_reply(seat: Any, session: Any, observation: Any, prompt: Any, constrained_decoding: bool) -> None:
    """Refuse a form of replies in which no legal action can be written, and a limit of tokens below the shortest one:
    each reply would be cut, or end the run.
    """
    chat, actions, written = seat.chat, observation.legal_actions, list[int]()
    if prompt.max_tokens < 1:
        raise seat.out_of_tokens(session, prompt, 1)
    if constrained_decoding and actions:
        seat.moves(session, observation, prompt)
        return
    for action in actions:
        ids = chat.choice_ids(action) or ()
        if chat.reply_format.parse(chat.read(ids[: prompt.max_tokens])).action is not None:
            return
        written += [len(ids)] * bool(ids)
    if written:
        raise seat.out_of_tokens(session, prompt, min(written))
    if actions and (name := chat.options.reply_format.type) != "tags":
        why = f"can say none of the legal actions of {session.game_id}, such as {actions[0]!r}; choose `tags`"
        raise ConfigError("config.language_model.reply_format", f"`{name}` {why}")


async def _check_game(game: GameConfig, chats: _Chats) -> None:
    from rllib_lmgame.policies.scripted import make_scripted_player
    from rllib_lmgame.rollouts.game_calls import GameCalls, abandon, open_session
    from rllib_lmgame.rollouts.seats import EpisodeFailed, ExpertReplies, LanguageModelSeat
    from rllib_lmgame.rollouts.sources import AgentMapper

    config, timeout_s = chats.config, chats.config.run.text_rollouts.env_step_timeout_s
    session = await open_session(game, timeout_s)
    if session.program is not None:  # What it asks is for it to say.
        abandon(session)
        return
    agent_mapper = AgentMapper(config)
    call = GameCalls(session.game_id, session.trusted, timeout_s)
    stage = config.run.supervised_stage
    taught = stage is not None and stage.data is None and game in config.training_games()
    taught = taught and begins_with_expert(config)
    expert = ExpertReplies(make_scripted_player(stage.expert), random.Random(0)) if taught else None
    try:
        for plan in plan_episodes(LEVELS, run_seed=config.seed or 0, purpose="train", iteration=0):
            assignments = agent_mapper.assignments(plan, session.roles)
            try:
                await call("reset", session.reset, plan.seed)
            except EpisodeFailed as failure:
                if failure.reason is not StopReason.ENV_ERROR:
                    raise
                if plan.index == LEVELS - 1:
                    raise ConfigError(f"config.{'env' if config.run.env else 'games'}", str(failure)) from None
                continue
            for agent in await call("to_act", session.to_act):
                policy = assignments[agent].module_id
                if assignments[agent].player != LANGUAGE_MODEL or (chat := chats.of(policy, game)) is None:
                    continue
                chat = chat.for_game(session.functions)
                named = {"chat": chat, "instructions": session.instructions, "game_id": session.game_id}
                seat = LanguageModelSeat(agent, session.roles[agent], policy, **named)
                observation = await call("observe", session.observe, agent)
                prompt = seat.conversation.prompt(observation, None)
                _check_reply(seat, session, observation, prompt, config.run.text_rollouts.constrained_decoding)
                if expert is not None:
                    await expert.reply(seat, session, observation, prompt, call)
            break
    finally:
        abandon(session)

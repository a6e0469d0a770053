"""What supervised learning learns from: a scripted player that is known, or files whose conversations can be learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.config.algorithms import ACTION_VALUES, PREFERENCES, SUPERVISED
from rllib_lmgame.datasets.options import OF_DATA, SupervisedOptions
from rllib_lmgame.envs.registry import game_spec, is_program


def check_dataset(config: Any) -> None:
    """Check that the expert exists. Raises: ConfigError: if not; keys do not start with ``config.``."""
    from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, make_scripted_player

    for section, options in _learnt(config):
        if options.data is None and isinstance(options, SupervisedOptions):
            try:
                make_scripted_player(options.expert)
            except ConfigError as error:
                raise ConfigError(f"{section}.expert", error.message) from None
            programs = [game.env for game in config.training_games() if is_program(game.env)]
            if programs and options.expert in SCRIPTED_PLAYERS and begins_with_expert(config):
                known = f"{programs[0]} is a program, which `{options.expert}` cannot answer"
                raise ConfigError(f"{section}.expert", f"{known}; set {section}.data, or leave {section} out")


def begins_with_expert(config: Any) -> bool:
    """Whether the expert plays at all: exploring can begin without it."""
    evolution = config.run.agentevol
    return evolution is None or evolution.original_episodes > 0


def _learnt(config: Any) -> Iterator[tuple[str, Any]]:
    for section in ("warm_start", SUPERVISED, PREFERENCES):
        options = getattr(config.run, section)
        if options is not None:
            yield section, options


def check_data(config: Any, chat_of: Callable[[str], Any]) -> None:
    """Check that files hold what can be learnt: whole conversations, or episodes of the trained games in seats that
    have policies; and that the chat template of each policy writes conversations of all kinds in them.

    ``chat_of`` gives a policy's chat format, ``None`` where its tokenizer is not here yet: then nothing is written.
    Raises: ConfigError: naming the wrong line.
    """
    from rllib_lmgame.datasets.preferences import PreferenceDataset
    from rllib_lmgame.datasets.replay import RecordedSession
    from rllib_lmgame.datasets.sft import SFTDataset

    for section, options in _learnt(config):
        if options.data is None:
            continue
        kind: Any = SFTDataset if isinstance(options, SupervisedOptions) else PreferenceDataset
        try:
            data = kind(options, config.row_limits())
            _check_sessions([each for each in data.conversations if isinstance(each, RecordedSession)], config)
            if ACTION_VALUES in config.entry.sections:
                data.check_rewarded()
            if all(map(chat_of, config.trained_policies())):
                data.check(chat_of)
        except ConfigError as error:
            if error.path.startswith("config."):
                raise
            raise ConfigError(f"config.{section}.{error.path or 'data'}", error.message) from None


def data_of(config: Any) -> str:
    """What is read and chosen of it, in words: the same for configurations that learn from the same."""
    return repr([[getattr(options, name, options) for name in ("data", *OF_DATA)] for _, options in _learnt(config)])


def _check_sessions(episodes: Sequence[Any], config: Any) -> None:
    from rllib_lmgame.datasets.replay import plan_of
    from rllib_lmgame.rollouts.sources import AgentMapper

    games = {game_spec(game.env).game_id for game in config.training_games()}
    agent_mapper, seatings = AgentMapper(config), set()
    for session in episodes:
        where = session.where
        if not games:
            raise ConfigError("", f"{where}: a log is played again in its game; set config.env: {session.game_id}")
        if session.game_id not in games:
            mend = "set config.env to the log's game, or leave its lines out"
            trained = ", ".join(sorted(games))
            raise ConfigError("", f"{where}: an episode of {session.game_id}, but {trained} is trained on; {mend}")
        seating = tuple(session.roles.items())
        if seating not in seatings:
            seatings.add(seating)
            try:
                agent_mapper.assignments(plan_of(session, ""), session.roles)
            except ConfigError as error:
                raise ConfigError("", f"{where}: {error.path}: {error.message}") from None

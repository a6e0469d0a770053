"""Who sits at the table of ``rllib play``: ``--players``, or the shorter ``--against`` and ``--checkpoint``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.games import on_split
from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.cli.game_table import Person
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.evaluation.players.language_model import policy_player
from rllib_lmgame.evaluation.players.naming import make_player, split_name
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.evaluation.saved_config import open_checkpoint
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.players import Player
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.sources import LineUps

NOBODY = "none"


@dataclass(frozen=True)
class OpenCheckpoint:
    place: Path
    config: LMGameConfig

    @classmethod
    def at(cls, path: str, settings: PlayerSettings) -> OpenCheckpoint:
        """The checkpoint at or below ``path``. Raises: CheckpointError: not one of this package, or damaged."""
        checkpoint = find_checkpoint(path)
        if not is_own_checkpoint(checkpoint):
            raise CheckpointError(f"{checkpoint} is the checkpoint of a stock algorithm; `rllib evaluate` plays it")
        return cls(*open_checkpoint(checkpoint, trust=settings.trust, games=settings.names))

    def game(self, name: str | None, own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
        known = self.config.games_for_evaluation("test")
        if name is None:
            if not known:
                raise ConfigError("GAME", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
            chosen = known[0]
            if len(known) > 1:
                print("the checkpoint plays several games: " + ", ".join(entry.env for entry in known))
        else:
            name = game_spec(name).game_id
            elsewhere = on_split((GameConfig(env=name),), "test", override=True)[0]
            chosen = next((entry for entry in known if entry.env == name), elsewhere)
        return chosen.env, {**chosen.env_config, **own}

    def players(
        self,
        agents: Sequence[str],
        session: GameSession,
        plan: EpisodePlan,
        policy: str | None,
        settings: PlayerSettings,
    ) -> dict[str, Player]:
        line_up = {} if policy is not None else LineUps(self.config).line_up(plan, session.roles)
        policies = {agent: policy or line_up[agent].module_id for agent in agents}
        settings = replace(settings, seed=self.config.seed or 0, flag="--policy")
        made = {
            name: policy_player(name, name, self.place, self.config, name, settings)
            for name in dict.fromkeys(policies.values())
        }
        return {agent: made[name] for agent, name in policies.items()}


def players_of(
    args: argparse.Namespace,
    session: GameSession,
    plan: EpisodePlan,
    checkpoint: OpenCheckpoint | None,
    settings: PlayerSettings,
) -> dict[str, Player]:
    """Who sits where. Raises: ConfigError: no such player or seat, or not one a seat; CheckpointError: damaged."""
    if args.players is not None:
        return _named_players(args, session, settings)
    person: Player = Person()
    if checkpoint is None and args.against is None:
        return dict.fromkeys(session.agent_ids, person)
    people = _people(session, args.seat)
    others: dict[str, Player] = {}
    models = [agent for agent in session.agent_ids if agent not in people]
    if args.against is not None:
        if len(session.agent_ids) == 1:
            raise ConfigError("--against", f"{session.game_id} has one seat; there is nobody to play against")
        against = make_player(args.against, args.against, replace(settings, flag="--against"))
        if checkpoint is not None:  # The person watches.
            models, people = list(people or session.agent_ids[:1]), ()
        others = dict.fromkeys(session.agent_ids, against)
    if checkpoint is not None:
        others |= checkpoint.players(models, session, plan, args.policy, settings)
    return {agent: person if agent in people else others[agent] for agent in session.agent_ids}


def _named_players(args: argparse.Namespace, session: GameSession, settings: PlayerSettings) -> dict[str, Player]:
    """The players of ``--players``, each made once; who has no seat of its own takes all that are left."""
    named, rest = line_up_of(args.players, session.agent_ids)
    free = tuple(agent for agent in session.agent_ids if agent not in named)
    people = _people(session, args.seat) if args.seat is not None else free[:1] if rest is not None else free
    players: dict[str | None, Player] = {None: Person()}
    for agent in session.agent_ids:
        source = named.get(agent, rest)
        if agent in people and agent in named:
            raise ConfigError("--seat", f"seat {agent!r} is yours and {source}'s; name another one")
        if agent not in people and source is None:
            message = f"nobody takes the seat {agent!r}; write {agent}=PLAYER, or PLAYER for all"
            raise ConfigError(settings.flag, message)
        if agent not in people and source not in players:
            players[source] = make_player(str(source), str(source), settings)
    return {agent: players[None if agent in people else named.get(agent, rest)] for agent in session.agent_ids}


def line_up_of(texts: Sequence[str], agents: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Players by seat of ``SEAT=PLAYER``, and who takes the rest. Raises: ConfigError: no such seat, or one twice."""
    named: dict[str, str] = {}
    others: str | None = None
    for text in texts:
        seat, player = split_name(text)
        if seat is None and others is not None:
            message = f"{others!r} and {text!r} cannot both take all other seats; write SEAT=PLAYER"
            raise ConfigError("--players", message)
        if seat is None:
            others = player
            continue
        if seat not in agents:
            hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}")
            raise ConfigError("--players", f"there is no seat {seat!r}; {hint}")
        if seat in named:
            raise ConfigError("--players", f"seat {seat!r} is given twice")
        named[seat] = player
    return named, others


def _people(session: GameSession, seat: str | None) -> tuple[str, ...]:
    """Seats of the person: none in a game for one, else the first one unless another is named."""
    if seat == NOBODY:
        return ()
    if seat is None:
        return () if len(session.agent_ids) == 1 else session.agent_ids[:1]
    if seat not in session.agent_ids:
        hint = did_you_mean(seat, session.agent_ids, f"seats: {', '.join(session.agent_ids)}; `{NOBODY}` to watch")
        raise ConfigError("--seat", f"{session.game_id} has no seat {seat!r}; {hint}")
    return (seat,)

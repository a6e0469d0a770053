"""The policies of a checkpoint in this process, one reply at a time: no Ray, no vLLM, no learner."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.evaluation.players.language_model import local_engine
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.inference.serving.client import LocalEngineClient
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment
from rllib_lmgame.rollouts.seating import Seating, engine_replies, table_seed
from rllib_lmgame.rollouts.seats import EngineReplies, Seat
from rllib_lmgame.rollouts.sources import LineUps

if TYPE_CHECKING:
    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine


class LocalPlayers:
    """Takes seats in games and replies for them. A context: its engines end with it.

    Args:
        checkpoint: Directory of a checkpoint of an algorithm of this package's kind.
        temperature: Sampling temperature, 0 is greedy; ``None`` takes that of training.
        trust: Take from the checkpoint what could run code, also if none of this user's runs wrote it
            (:mod:`.saved_config`).
        games: Games the user named instead of the checkpoint's.

    Raises:
        CheckpointError: if it is no checkpoint of this package, or files are missing, truncated or altered.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        temperature: float | None = None,
        trust: bool = False,
        games: Sequence[str] = (),
    ) -> None:
        self.directory, self.config = open_checkpoint(checkpoint, trust=trust, games=games)
        self.temperature = temperature
        self._line_ups = LineUps(self.config)
        self._runner = asyncio.Runner()
        self._engines: dict[str, TransformersEngine] = {}
        self._chats: dict[str, ChatFormat] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self._engines.values():
            self._runner.run(engine.shutdown())
        self._runner.close()

    def seat(self, session: GameSession, agent: str, *, seed: int, policy: str | None = None) -> Seat:
        """Whoever plays ``agent``'s seat in training, or ``policy``; a language model is loaded when it is first asked
        for.

        Raises:
            ConfigError: if there is no such policy.
        """
        plan = EpisodePlan(f"play-{seed}", 0, seed, "", 0)
        if policy is None:
            line_up = self._line_ups.line_up(plan, session.roles)
        elif policy in self.config.player_options:
            line_up = {agent: self._line_ups.assignment(policy)}
        else:
            match = nearest(policy, self.config.player_options)
            hint = f"did you mean {match!r}?" if match else f"known: {', '.join(self.config.player_options)}"
            raise ConfigError("--policy", f"{policy!r} is no policy of the checkpoint; {hint}")
        seating = Seating(self._chat, self._replies, self.config.text_rollout_options, seed=table_seed)
        return seating.seat(session, dataclasses.replace(plan, line_up=line_up), agent)

    def act(self, seat: Seat, session: GameSession) -> str:
        """The action of ``seat`` for what it sees now.

        Raises:
            OutOfTokens: if the context or the token budget leaves no room for a reply.
            EpisodeFailed: if the engine or a scripted player failed.
        """
        call = GameCalls(session.game_id, session.trusted, self.config.text_rollout_options.env_step_timeout_s)
        return self._runner.run(seat.act(session, session.observe(seat.agent_id), call))

    def _replies(self, assignment: SeatAssignment, plan: EpisodePlan, seed: int) -> EngineReplies:
        policy = assignment.module_id
        return engine_replies(
            partial(LocalEngineClient(self._engine(policy)).generate, key=policy),
            self.config.inference_options,
            self.config.text_rollout_options,
            temperature=self.temperature,
            seeded=True,
        )

    def _chat(self, policy: str) -> ChatFormat:
        if policy not in self._chats:
            options = self.config.language_model_of(policy)
            model = model_of(self.directory, self.config, policy).directory()
            self._chats[policy] = ChatFormat(load_tokenizer(model, options), options)
        return self._chats[policy]

    def _engine(self, policy: str) -> Any:
        if policy not in self._engines:
            config = self.config
            engine = local_engine(
                model_of(self.directory, self.config, policy).directory(),
                config.inference_options,
                config.language_model_of(policy),
                seed=config.seed or 0,
                at_once=1,
            )
            self._runner.run(engine.start())
            self._engines[policy] = engine
        return self._engines[policy]

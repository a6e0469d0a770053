"""Language models of this machine as players: a Hugging Face model, or a policy of a checkpoint.

An engine (:mod:`.engines`) writes their replies, one batch for all games of a model.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rllib_lmgame.algorithms.checkpoints.manifest import MANIFEST, file_hash
from rllib_lmgame.algorithms.checkpoints.paths import TRUST_FLAG, find_checkpoint
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.demonstrations import with_demonstrations
from rllib_lmgame.algorithms.models import initial_model
from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.group import as_mapping, build
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.evaluation.players.engines import VLLMReplies, replies_by_vllm, with_threads
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.league.files import DIRECTORY, is_adapter, members_of
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.mapping import MappingFn, RoleMapping, SeatMapping
from rllib_lmgame.policies.model.files import (
    DATA_ENDINGS,
    check_model,
    code_problem,
    fetched,
    load_tokenizer,
    model_directory,
    model_problem,
    tokenizer_source,
)
from rllib_lmgame.policies.options import LANGUAGE_MODEL, LanguageModelOptions
from rllib_lmgame.policies.scripted import HUGGING_FACE
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan
from rllib_lmgame.rollouts.players import LanguageModel, Player, Scripted, sampled_in
from rllib_lmgame.rollouts.seats import EngineReplies, Seat

if TYPE_CHECKING:
    from rllib_lmgame.envs.contract.session import GameSession
    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
    from rllib_lmgame.rollouts.records import GameConfig


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    language_model: LanguageModelOptions
    inference: InferenceOptions
    text_rollouts: TextRolloutOptions
    in_games: Mapping[str, LanguageModelOptions] = dataclasses.field(default_factory=dict)
    """Id of a game -> how the model is talked to in it, where that is its own."""
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of ``language_model`` that a policy has of its own: they go before those of a game's entry."""


class LocalModel(LanguageModel):
    """A language model of this machine; entering it loads the weights of ``directory`` (or hub id).

    Models that play side by side share the cores with ``num_threads: auto``. Of ``inference`` only GPU, numerics and
    threads count for the Transformers engine. ``digests`` tell its files from others in the same place. An
    ``adapter``'s directory is merged into the weights.

    Raises: ConfigError: no tokenizer, or an unusable chat template.
    """

    def __init__(
        self,
        name: str,
        source: str,
        directory: str,
        options: ModelOptions,
        settings: PlayerSettings,
        digests: Callable[[], Mapping[str, str]] = dict,
        adapter: Path | None = None,
    ) -> None:
        self.directory, self.options, self.settings = directory, options, settings
        self._digests, self._adapter = digests, adapter
        self._engine: TransformersEngine | VLLMReplies | None = None
        self._asked: dict[str, ChatFormat] = {}
        try:
            tokenizer = load_tokenizer(directory, options.language_model)
            super().__init__(
                name, source, ChatFormat(tokenizer, options.language_model), self._sampled, options.text_rollouts
            )
            self._chats = {game: ChatFormat(tokenizer, own) for game, own in options.in_games.items()}
            for game in settings.games:
                self.in_game(game)
        except ConfigError as error:
            raise ConfigError(error.path, f"player {name!r}: {error.message}") from error

    @property
    def by_vllm(self) -> bool:
        """Whether vLLM writes the replies; an adapter beside its base is merged for the Transformers engine."""
        return self._adapter is None and replies_by_vllm(self.directory, self.options.inference)

    def chat_in(self, game_id: str) -> ChatFormat:
        return self._chats.get(game_id, self._chat)

    def in_game(self, game: GameConfig) -> LanguageModel:
        rollouts = self.options.text_rollouts
        if game.format_penalty is not None:
            rollouts = rollouts.model_copy(update={"format_penalty": game.format_penalty})
        replies = partial(self._sampled, game=game)
        return LanguageModel(self.name, self.source, self._chat_of(game), replies, rollouts, game.temperature)

    def _chat_of(self, game: GameConfig) -> ChatFormat:
        """One is made for each different way of talking. Raises: ConfigError: the model cannot be talked to so."""
        asked = game.asked(self.options.own)
        if not asked:
            return self.chat_in(game_spec(game.env).game_id)
        key = repr(sorted(asked.items()))
        if key not in self._asked:
            try:
                options = build(LanguageModelOptions, asked, "", self.options.language_model)
                self._asked[key] = ChatFormat(self._chat.tokenizer, options)
            except ConfigError as error:
                where = f"games.{game.called(game.env)}.{error.path.removeprefix('config.')}"
                raise ConfigError(where, error.message) from error
        return self._asked[key]

    async def __aenter__(self) -> Self:
        from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
        from rllib_lmgame.policies.model.network import merged_checkpoint

        model = self.options.language_model
        inference = with_threads(self.options.inference, self.directory, self.settings.models)
        inference = inference.constrained(self.options.text_rollouts.constrained_decoding)
        inference = inference.model_copy(update={"max_num_seqs": self.settings.at_once})
        more: dict[str, Any] = {
            "context_length": model.context_length,
            "seed": self.settings.seed,
            "trust_remote_code": model.trust_remote_code,
            "tokenizer": tokenizer_source(model, self.directory),
        }
        if self.by_vllm:
            self._engine = VLLMReplies(self.directory, inference, **more)
        else:
            alone = inference.model_copy(update={"tensor_parallel_size": 1, "engine_kwargs": {}})
            self._engine = TransformersEngine(self.directory, alone, **more)
        place = Path(self.directory)
        try:
            await self._engine.start()
            if self._adapter is not None:
                place = self._adapter
                trusts = model.trust_remote_code
                state = merged_checkpoint(self._adapter, self.directory, trust_remote_code=trusts)
                await self._engine.update_weights(dict(state), 0)  # type: ignore[union-attr]
        except Exception as error:
            await self._engine.shutdown()
            said = error.message if isinstance(error, ConfigError) else first_line(error)
            raise ConfigError("", f"player {self.name!r}: {place}: {said}") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._engine is not None:
            await self._engine.shutdown()

    def _sampled(self, plan: EpisodePlan, seed: int, game: GameConfig | None = None) -> EngineReplies:
        assert self._engine is not None
        sampling = self.options.inference, self.settings.temperature
        inference, temperature = sampling if game is None else sampled_in(game, *sampling)
        constrained = self.options.text_rollouts.constrained_decoding
        return EngineReplies(self._engine.generate, inference, temperature, constrained, seeded=True)

    def identity(self) -> dict[str, Any]:
        inference, own = self.options.inference, self.options.in_games
        return {
            **super().identity(),
            "temperature": self.settings.temperature,
            "language_model": as_mapping(self.options.language_model),
            **({"in_games": {game: as_mapping(each) for game, each in own.items()}} if own else {}),
            "sampling": [inference.temperature, inference.top_p, inference.top_k],
            "constrained_decoding": self.options.text_rollouts.constrained_decoding,
            **self._digests(),
        }


def hugging_face_player(name: str, source: str, settings: PlayerSettings) -> Player:
    """The model of ``hf:DIR_OR_ID``, with its settings from ``--config``.

    Raises: ConfigError: no such model, here or on the hub, an incomplete one, or a wrong setting.
    """
    model = source.removeprefix(HUGGING_FACE)
    if not model:
        raise ConfigError(settings.flag, f"{source!r} names no model; write hf:DIR or hf:ORGANISATION/MODEL")
    path = expanded(model)
    directory = str(path) if path.exists() else model
    check_model(directory, settings.flag)
    fetched(directory, settings.flag)
    files = model_directory(directory, settings.flag)
    own, where = settings.sections, "--config.language_model"
    talk = build(LanguageModelOptions, {"model": directory}, where, own.language_model)
    options = ModelOptions(with_demonstrations(talk, settings.games, settings.seed), own.inference, own.text_rollouts)

    def digests() -> dict[str, str]:
        places = {"model_files": files}
        tokenizer = tokenizer_source(options.language_model, files)
        if tokenizer != places["model_files"]:
            places["tokenizer_files"] = tokenizer
        return {key: files_digest(Path(place)) for key, place in places.items() if Path(place).is_dir()}

    return LocalModel(name, source, files, options, settings, digests)


def files_digest(directory: Path) -> str:
    """Hash of a model's configuration, tokenizer, chat template and weights."""
    paths = sorted(path for path in directory.iterdir() if path.is_file() and path.suffix in DATA_ENDINGS)
    listed = "\n".join(f"{file_hash(path)} {path.name}" for path in paths if path.suffix != ".md")
    return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


def checkpoint_player(name: str, source: str, directory: str, policy: str | None, settings: PlayerSettings) -> Player:
    """A policy of a checkpoint (or of a trial's directory), or a member of its league, as a player.

    Without a name it is the trained policy; of several, each plays the seats that it was trained for.

    Raises: CheckpointError: not one of this package, or damaged; ConfigError: no such policy, or several trained that
    took the same seats.
    """
    checkpoint, config = open_checkpoint(find_checkpoint(directory), trust=settings.trust)
    trained = config.trained_policies()
    mapping = config.agent_to_module_mapping()
    if policy is None and len(trained) > 1 and settings.games and isinstance(mapping, SeatMapping | RoleMapping):
        own = {each: policy_player(name, source, checkpoint, config, each, settings) for each in config.run.policies}
        return PoliciesOfSeats(name, source, own, mapping)
    if policy is None and len(trained) > 1:
        several = f"{source} holds several trained policies ({', '.join(trained)}); write {source}:{trained[0]}"
        raise ConfigError(settings.flag, several)
    return policy_player(name, source, checkpoint, config, policy or trained[0], settings)


class PoliciesOfSeats(Player):
    """Policies of one run, each in the seats that it was trained for."""

    def __init__(self, name: str, source: str, players: Mapping[str, Player], mapping: MappingFn) -> None:
        super().__init__(name, source)
        self._players, self._mapping = players, mapping
        self._entered = AsyncExitStack()

    @property
    def assignment(self) -> AgentAssignment:
        return AgentAssignment(self.name, LANGUAGE_MODEL, member=self.source)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for player in self._players.values():
                await stack.enter_async_context(player)
            self._entered = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._entered.aclose()

    def in_game(self, game: GameConfig) -> Player:
        own = {policy: player.in_game(game) for policy, player in self._players.items()}
        return PoliciesOfSeats(self.name, self.source, own, self._mapping)

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        roles = session.roles
        policy = self._mapping(agent, None, role=roles[agent], roles=roles, agent_ids=session.agent_ids, seed=plan.seed)
        return self._players[policy].seat(session, plan, agent, seed)

    def identity(self) -> dict[str, Any]:
        own = {policy: player.identity() for policy, player in self._players.items()}
        return {**super().identity(), "policies": own}


def policy_player(
    name: str, source: str, checkpoint: Path, config: LMGameConfig, policy: str, settings: PlayerSettings
) -> Player:
    """As :func:`checkpoint_player`, of an open checkpoint. A member of the league talks as the policy that it was.

    Raises: CheckpointError: a member is not trusted, and could run code or needs a model that the configuration names.
    """
    members = members_of(checkpoint)
    config.other_games = settings.games
    digests, adapter = {"checkpoint": file_hash(checkpoint / MANIFEST)}, None
    if policy in config.run.policies:
        player = config.run.policies[policy].player
        if player != LANGUAGE_MODEL:
            return Scripted(name, player, limit_s=settings.time_limit_s)
        model = model_of(checkpoint, config, policy).directory()
    elif policy in members:
        directory, digests["member"], policy = checkpoint / DIRECTORY / policy, policy, members[policy]
        adapter = directory if is_adapter(directory) else None
        base = "it is an adapter for a model that the checkpoint names" if adapter else None
        if not settings.trust and (problem := code_problem(directory) or base):
            raise CheckpointError(f"{directory}: {problem}; pass {TRUST_FLAG} if you trust whoever made it")
        if adapter is None and (damage := model_problem(directory)):
            raise CheckpointError(damage)
        model = str(directory) if adapter is None else initial_model(config, policy).directory()
    else:
        known = [*config.run.policies, *members]
        hint = did_you_mean(policy, known, f"known: {', '.join(known)}")
        raise ConfigError(settings.flag, f"{policy!r} is no policy or league member of the checkpoint; {hint}")
    return LocalModel(name, source, model, options_of_policy(config, policy), settings, lambda: digests, adapter)


def talked_to(config: LMGameConfig) -> dict[str, GameConfig]:
    """By game, an entry of the training games if all of them talk to it in one way of their own."""
    entries: dict[str, list[GameConfig]] = {}
    for game in config.run.games:  # None, if it learned from files.
        entries.setdefault(game_spec(game.env).game_id, []).append(game)
    alike = [
        found for found in entries.values() if all(game.language_model == found[0].language_model for game in found)
    ]
    return {game_spec(game.env).game_id: game for game, *_ in alike if game.language_model}


def options_of_policy(config: LMGameConfig, policy: str) -> ModelOptions:
    """A policy's options, also in each game whose entries all talk to it in one way of their own."""
    own = {name: config.language_model_of(policy, game) for name, game in talked_to(config).items()}
    return ModelOptions(
        config.language_model_of(policy),
        config.run.inference.model_copy(update={"num_engines": 1}),
        config.run.text_rollouts,
        own,
        config.run.policies[policy].language_model,
    )

"""Options of a language-model policy: which model, how it is talked to, how much it may write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import create_model, model_validator

from rllib_lmgame.base.errors import ConfigError, of_each
from rllib_lmgame.base.group import Group, Holds, Scheduled, build, check_placeholders, declared, describe, option
from rllib_lmgame.base.registry import REPLY_FORMATS
from rllib_lmgame.base.schedule import is_meant_as_schedule
from rllib_lmgame.base.storage import with_absolute_paths
from rllib_lmgame.base.trust import is_hub_id, is_name, is_template
from rllib_lmgame.policies.demonstrations import Demonstration, read_demonstrations

LEAGUE = "league"
"""The ``policy_mapping_fn`` whose assignments the league deals."""
TINY_MODEL = "tiny"
"""Value of ``model`` that builds a tiny Qwen2 model and tokenizer on the spot (see :mod:`.model.tiny`)."""
LANGUAGE_MODEL = "language_model"
"""The player that is no scripted one."""


class TinyModelOptions(Group):
    """Shape of the tiny model; the defaults have 0.36 M parameters."""

    hidden_size: int = option(96, "Width.", ge=8, le=65_536)
    num_layers: int = option(3, "Transformer layers.", ge=1, le=1_024)
    num_heads: int = option(3, "Attention heads; vLLM on CPUs needs multiples of 32 per head.", ge=1, le=1_024)
    num_kv_heads: int | None = option(None, "Key-value heads; null takes `num_heads`.", ge=1)
    intermediate_size: int = option(256, "Width of the feed-forward layers.", ge=8, le=1e6)
    vocab_size: int = option(320, "Most tokens: 256 bytes, marks of boards, words of the games.", ge=272, le=1e6)
    max_position_embeddings: int = option(4096, "Longest sequence.", ge=64, le=20_000_000)
    tie_word_embeddings: bool = option(True, "One matrix for input embedding and output head.")
    initializer_range: float | None = option(
        None, "Deviation of the initial weights; null: `hidden_size ** -0.5`.", gt=0
    )
    seed: int = option(0, "Seed of the initial weights.", ge=0)


AGREED = "OK."
"""What a model has said to rules that are a user message."""

ALL_LINEAR = "all-linear"


class LoraOptions(Group):
    """``language_model.lora``: adapters beside frozen weights, as PEFT knows them."""

    r: int = option(16, "Rank of an adapter.", ge=1, le=4_096)
    alpha: int = option(32, "An adapter's output is multiplied by `alpha / r`.", ge=1, le=65_536)
    dropout: float = option(0.0, "Of what goes into adapters, in passes that train.", ge=0, lt=1)
    target_modules: str | list[str] = option(
        ALL_LINEAR, "`all-linear` (all but the head), or ends of names: `[q_proj, v_proj]`.", stranger=True
    )
    modules_to_save: list[str] = option(
        [], "Modules trained in full, by the ends of their names: `[norm]`.", stranger=True
    )
    use_rslora: bool = option(False, "Multiply by `alpha / sqrt(r)` instead.")
    init: str | None = option(
        None, "Directory of an adapter to begin with, which gives `r`, `alpha` and modules; null: none.", path=True
    )


class LanguageModelOptions(Group):
    """The ``language_model`` section."""

    model: str = option(
        TINY_MODEL,
        "Hugging Face hub id, directory, known name (`smollm2-135m`), or `tiny`: a small model built on the spot.",
        stranger=is_hub_id,
        path=True,
    )
    tiny: dict[str, Any] = option({}, "Overrides of the tiny model's shape.", holds=Holds(TinyModelOptions))
    tokenizer: str | None = option(None, "Tokenizer if it is not the model's own.", stranger=is_hub_id, path=True)
    dtype: str = option(
        "auto",
        "Numerics of the learner's weights. `auto`: float32, with bfloat16 passes on GPUs, and from 10 M parameters on "
        "processors with AVX512-BF16 or AMX. bfloat16 and float16 need `deepspeed`.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    attn_implementation: str = option(
        "auto",
        "`auto`: one kernel for all rows on GPUs in half precision (flash-attn's or PyTorch's), else row-wise SDPA.",
        choices=("auto", "sdpa", "flash_attention_2"),
    )
    gradient_checkpointing: bool = option(False, "Recompute activations in the backward pass.")
    trust_remote_code: bool = option(False, "Run code that comes with the model. Off unless set.", stranger=False)
    value_model: str = option(
        "shared", "A value head on the policy's backbone, or a `separate` model.", choices=("shared", "separate")
    )
    freeze_backbone_for_value: bool = option(False, "Keep the value loss off a shared backbone.")
    lora: LoraOptions | None = option(
        None, "Train adapters and the value head (`{}`: all defaults); null: all weights."
    )

    system_prompt: str | None = option(
        None,
        "System message; null takes the game's own instructions, empty text leaves it out. `{rules}` stands for these, "
        "`{max_turns}` for the game's turns, `{max_tokens}` for `max_tokens_per_turn`.",
        stranger=True,
    )
    conversation_start: str = option(
        "system",
        "Rules stand in a `system` message, or in a first `user` message that is answered `OK.` (AgentGym).",
        choices=("system", "user"),
    )
    chat_template: str | None = option(
        None, "Jinja chat template or its file; null: the tokenizer's own.", stranger=is_template, path=True
    )
    chat_template_kwargs: dict[str, Any] = option(
        {}, "Arguments of the template: `{enable_thinking: false}`.", stranger=True
    )
    reply_format: Annotated[Any, REPLY_FORMATS] = option("tags", "Form of a reply, with its own options.")
    answer_tag: str | list[str] = option(
        "answer",
        "Tag the action stands in; of a list one, and the game is told which: the action keeps its tags.",
        stranger=True,
    )
    think_tag: str = option(
        "think",
        "Name of the tag the reasoning stands in; or its opening mark as it is written, for a model that has control "
        'tokens for it (`"[THINK]"`); or both marks with three dots between them.',
        stranger=True,
    )
    think: str = option("off", "Reasoning part before the answer.", choices=("off", "optional", "required"))
    format_instructions: bool = option(True, "Say in each user message how to answer.")
    turn_suffix: str = option(
        "Turns left: {turns_left}",
        "Line added to user messages of a game with a turn limit; `{turns_left}` is all it may hold, empty: none.",
        stranger=True,
    )
    reply_prefill: str = option("", "Text the reply is made to begin with; not trained on.", stranger=True)
    demonstrations: int | str | list[Any] = option(
        0,
        "Example turns before a game's first one. A number up to 64: by the solver, on training levels that are "
        "then not played. Or a JSON file.",
        path=True,
        stranger=lambda value: not isinstance(value, str),  # A file.
    )
    stop_on_answer: bool = option(True, "End the reply once its answer is complete.")
    history: str = option(
        "keep",
        "`keep` all, `strip_think`: without earlier reasoning, `window`: the last `history_window` turns.",
        choices=("keep", "strip_think", "window"),
    )
    history_window: int = option(1, "Turns shown (with `history: window`), the current one included.", ge=1)
    max_tokens_per_turn: Scheduled[int] = option(128, "Longest reply, in tokens.", ge=1)
    min_tokens_per_turn: Scheduled[int | None] = option(
        None, "Context left for a reply, or the episode is truncated; null: `max_tokens_per_turn`.", ge=1
    )
    max_tokens_per_episode: Scheduled[int | None] = option(None, "Most reply tokens of a player per episode.", ge=1)
    context_length: int = option(2048, "Longest prompt plus reply, in tokens.", ge=8, le=20_000_000)

    @property
    def least_room(self) -> int:
        """Tokens the context must have left for a reply."""
        return self.max_tokens_per_turn if self.min_tokens_per_turn is None else self.min_tokens_per_turn

    @model_validator(mode="after")
    def _read(self) -> LanguageModelOptions:
        check_placeholders(self.turn_suffix, ("turns_left",), "config.language_model.turn_suffix")
        object.__setattr__(self, "demonstrations", read_demonstrations(self.demonstrations))
        return self

    def shown(self, game: str, role: str) -> list[Demonstration]:
        """Demonstrations for one role of a game."""
        if isinstance(self.demonstrations, int):
            if self.demonstrations:
                raise ValueError("demonstrations are still to be made: with_demonstrations()")
            return []
        turns = [Demonstration(**entry) for entry in self.turns]
        return [turn for turn in turns if turn.game in ("", game) and turn.role in ("", role)]

    def in_game(self, game: str) -> LanguageModelOptions:
        """The same with the demonstrations of one game alone, which are then those of all."""
        own = [{**entry, "game": ""} for entry in self.turns if entry.get("game", "") in ("", game)]
        return self.model_copy(update={"demonstrations": own}) if own else self

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.demonstrations if isinstance(self.demonstrations, list) else []


LIMITS = ("max_tokens_per_turn", "min_tokens_per_turn", "max_tokens_per_episode")
"""How much may be written."""

TALK = (
    *("system_prompt", "conversation_start", "reply_format", "answer_tag", "think_tag", "think"),
    *("format_instructions", "turn_suffix", "reply_prefill", "history", "history_window"),
    *LIMITS,
)
"""What is said to a model and read of it, which each game can have of its own."""

TalkOptions: Any = create_model(  # type: ignore[call-overload]
    "TalkOptions",
    __base__=Group,
    __module__=__name__,
    __doc__="Those of :data:`TALK` among the options of a language model.",
    **{each.name: (each.hint, each.field) for key, each in declared(LanguageModelOptions).items() if key in TALK},
)


class PlayerOptions(Group):
    """One entry of the ``policies`` section: who plays under this name."""

    player: str = option(
        LANGUAGE_MODEL, "`language_model`, a scripted player, or `package.module:Class`.", stranger=is_name
    )
    trained: bool | None = option(None, "Whether it is trained; null: language models are, scripted players are not.")
    language_model: dict[str, Any] = option(
        {}, "Overrides of the `language_model` section.", holds=Holds(LanguageModelOptions)
    )


MAX_POLICY_NAME = 200
"""Bytes of a policy's name: with what is put around it, a directory has it, for which systems take 255."""


def read_policies(value: Any) -> dict[str, PlayerOptions]:
    """Policies by name, from a list or mapping; paths become absolute. Raises: ConfigError: for a wrong entry."""
    if isinstance(value, Mapping):
        entries = list(value.items())
    elif isinstance(value, list | tuple | set):
        entries = [(name, None) for name in value]
    else:
        raise ConfigError("config.policies", "expected a list of names or a mapping from names to options")
    if not entries:
        raise ConfigError("config.policies", "needs at least one policy")
    found = of_each(lambda entry: (_policy_name(entry[0]), _player(*entry)), entries)
    names = [name for name, _ in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"config.policies.{twice[0]}", "stands there twice")
    return dict(found)


def _player(name: Any, options: Any) -> PlayerOptions:
    player = build(PlayerOptions, {} if options is None else options, f"config.policies.{name}")
    for key, each in declared(LanguageModelOptions).items():
        if each.scheduled and is_meant_as_schedule(player.language_model.get(key)):
            where = f"config.policies.{name}.language_model.{key}"
            raise ConfigError(where, "a policy's own option cannot follow a schedule; set a number")
    own = with_absolute_paths(LanguageModelOptions, player.language_model)
    if isinstance(own.get("demonstrations"), str):  # So that a checkpoint keeps them.
        own = {**own, "demonstrations": read_demonstrations(own["demonstrations"])}
    return player.model_copy(update={"language_model": own}) if own else player


def _policy_name(name: Any) -> str:
    """A key of ``policies`` as text: it names directories, metrics and columns."""
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ConfigError("config.policies", f"expected names as keys, got {describe(name)}")
    text = str(name)
    fits = text and text.isprintable() and len(text.encode()) <= MAX_POLICY_NAME
    if not fits or text.startswith("__") or text[-1] in ". " or set(text) & set('/\\<>:"|?*'):
        where = f"config.policies.{text}" if fits else "config.policies"
        said = '/ \\ < > : " | ? *, no __ in front, no dot or space at its end'
        raise ConfigError(where, f"{text[:100]!r} is no name: 1 to {MAX_POLICY_NAME} printable bytes without {said}")
    return text

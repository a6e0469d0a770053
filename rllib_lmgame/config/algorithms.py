"""Algorithms on text games by name: one entry each. Importing this loads neither Ray nor torch.

An algorithm is named by an entry of this package (``LMGamePPO``), or an import path (``package.module:Name``) of an
:class:`AlgorithmEntry` or a class. A class has the entry of its default configuration. First checks follow no import
paths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.group import Group, option
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.trust import is_number
from rllib_lmgame.config.rllib import FLAT_KEYS
from rllib_lmgame.datasets.options import DPOOptions, SupervisedOptions
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.league.options import LeagueOptions
from rllib_lmgame.learners.options import (
    ExpectileValueOptions,
    ReturnValueOptions,
    TargetValueOptions,
    TeacherOptions,
    TrainingOptions,
)
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.options import DataSelectionOptions, TextRolloutOptions
from rllib_lmgame.telemetry.metrics import (
    ACTION_VALUE_NAMES,
    CRITIC_NAMES,
    DATA_EPOCHS,
    LEARNER_COLUMNS,
    LEARNER_NAMES,
    OBSERVATION_NAMES,
    PREFERENCE_NAMES,
)

BASE, LAST = "base", "last"


class AsyncRolloutOptions(Group):
    """The ``async_rollouts`` section: rollouts and updates at the same time."""

    max_staleness: int = option(
        0,
        "Iterations that are played ahead while one is trained on: no token is older by more updates, and no episode "
        "is waited for before as many. 0: playing and updating take turns.",
        ge=0,
        le=64,
    )


class EvolutionOptions(Group):
    """The ``agentevol`` section: what is explored and kept, and what imitation begins from."""

    iterations: int = option(4, "Times that the policy explores and imitates; then the run is done.", ge=1)
    levels: int = option(256, "Levels that it explores each time.", ge=1, le=1e6)
    new_levels: bool = option(False, "Others each time; else always the same.")
    samples_per_level: int = option(3, "Episodes on each of them.", ge=1, le=10_000)
    min_return: float | None = option(
        None, "Least return of what is kept; null: what the game calls a success.", stranger=is_number
    )
    one_per_level: str | None = option(
        "first",
        "Of a level's successes the `first` is kept, or the `best`, of the highest return; null: all.",
        choices=("first", "best"),
    )
    top_share: float | None = option(
        None,
        "Share of what was played in each game that is kept in place of successes: the highest returns.",
        gt=0,
        le=1,
    )
    accumulate: bool = option(False, "What was kept before stays; else each time counts alone.")
    keep_original: bool = option(True, "The data of `supervised` is imitated again each time, beside what was kept.")
    original_episodes: int = option(
        1024, "Episodes of `supervised.expert` that are that data, where it has no files; 0: none.", ge=0, le=1e6
    )
    start: str = option(
        BASE,
        "What imitation begins from: the run's first weights (`base`), or those it has come to (`last`).",
        choices=(BASE, LAST),
    )
    epochs: int = option(1, "Passes over the data each time.", ge=1, le=1_000)


@dataclass(frozen=True)
class Section:
    """One section of an algorithm's configuration; it may be ``optional``: off (``None``) unless written.

    Playing with a checkpoint reads those that are ``played``; other sections of a stranger's checkpoint are dropped.
    """

    group: type
    optional: bool = False
    played: bool = False


TRAINING = "training"
SUPERVISED = "supervised"
PREFERENCES = "dpo"
ACTION_VALUES = "action_values"
LEFT_OUT = "conversations_left_out"
SUPERVISED_METRICS = ("supervised_steps", "validation_loss", "validation_loss_before", LEFT_OUT)
COMMON_SECTIONS: Mapping[str, Section] = {
    "language_model": Section(LanguageModelOptions, played=True),
    "inference": Section(InferenceOptions, played=True),
    "text_rollouts": Section(TextRolloutOptions, played=True),
    TRAINING: Section(TrainingOptions),
}
"""Sections that an algorithm has unless it says otherwise; it may leave ``training`` out."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """What other modules know of an algorithm.

    Attributes:
        algorithm, config: Import paths of classes derived from ``LMGameAlgorithm`` and ``LMGameConfig``.
        sections: :data:`COMMON_SECTIONS` and its own; ``training`` only if it is read.
        learned_by: The section of an update, whose group says what the update needs by ``needs_critic``,
            ``needs_reference`` and ``compares`` (the option that compares a group's episodes); nothing without them.
        metrics: Extra top-level numbers in every result (NaN if absent), which ``stop`` may name.
        learner_metrics: The same below ``learners/<policy>``.

    Raises: ConfigError: for a missing or clashing section.
    """

    name: str
    algorithm: str
    config: str
    sections: Mapping[str, Section] = field(default_factory=lambda: dict(COMMON_SECTIONS))
    metrics: tuple[str, ...] = ()
    learner_metrics: tuple[str, ...] = LEARNER_COLUMNS
    learned_by: str = TRAINING

    def __post_init__(self) -> None:
        common = {name: each for name, each in COMMON_SECTIONS.items() if name != TRAINING or name in self.sections}
        if wrong := [name for name, section in common.items() if self.sections.get(name) != section]:
            raise ConfigError("run", f"{self.name!r} lacks {', '.join(wrong)}; write {{**COMMON_SECTIONS, ...}}")
        if taken := sorted(set(self.sections) & set(FLAT_KEYS)):
            raise ConfigError("run", f"{self.name!r} has a section {taken[0]!r}, which is another key of `config`")

    @property
    def groups(self) -> dict[str, type]:
        """Section -> option group."""
        return {name: section.group for name, section in self.sections.items()}

    def algorithm_class(self) -> Any:
        """The class. Raises: ConfigError: if it cannot be imported or does not fit :meth:`config_class`."""
        cls = import_path(self.algorithm, "run")
        if not isinstance(_default_config(cls), self.config_class()):
            wanted = f"algorithm whose get_default_config() returns a {self.config.partition(':')[2]}"
            raise ConfigError("run", f"{self.algorithm} is no {wanted}")
        return cls

    def config_class(self) -> Any:
        """Its configuration's class. Raises: ConfigError: if it cannot be imported or is of another algorithm."""
        cls = import_path(self.config, "run")
        own = getattr(cls, "entry", None)
        if not isinstance(own, AlgorithmEntry) or own.sections != self.sections:
            mend = "derive it from LMGameConfig and set its `entry`"
            raise ConfigError("run", f"{self.config} has not the sections of {self.name!r}: {mend}")
        return cls


PPO = AlgorithmEntry(
    "LMGamePPO",
    algorithm="rllib_lmgame.algorithms.ppo:LMGamePPO",
    config="rllib_lmgame.algorithms.ppo:LMGamePPOConfig",
    sections={
        **COMMON_SECTIONS,
        "warm_start": Section(SupervisedOptions, optional=True),
        "data_selection": Section(DataSelectionOptions),
        "league": Section(LeagueOptions, optional=True),
        "async_rollouts": Section(AsyncRolloutOptions),
        "teacher": Section(TeacherOptions, optional=True),
    },
    metrics=("rl_iteration", "phase", DATA_EPOCHS, *SUPERVISED_METRICS),
    learner_metrics=LEARNER_NAMES,
)
GRPO = dataclasses.replace(
    PPO,
    name="LMGameGRPO",
    algorithm="rllib_lmgame.algorithms.grpo:LMGameGRPO",
    config="rllib_lmgame.algorithms.grpo:LMGameGRPOConfig",
    learner_metrics=tuple(name for name in LEARNER_NAMES if name not in CRITIC_NAMES),
)
SFT = AlgorithmEntry(
    "LMGameSFT",
    algorithm="rllib_lmgame.algorithms.sft:LMGameSFT",
    config="rllib_lmgame.algorithms.sft:LMGameSFTConfig",
    sections={**COMMON_SECTIONS, SUPERVISED: Section(SupervisedOptions)},
    metrics=(*SUPERVISED_METRICS, "progress"),
    learner_metrics=(*LEARNER_COLUMNS, *OBSERVATION_NAMES),
    learned_by=SUPERVISED,
)
DPO = AlgorithmEntry(
    "LMGameDPO",
    algorithm="rllib_lmgame.algorithms.dpo:LMGameDPO",
    config="rllib_lmgame.algorithms.dpo:LMGameDPOConfig",
    sections={**COMMON_SECTIONS, "warm_start": PPO.sections["warm_start"], PREFERENCES: Section(DPOOptions)},
    metrics=(*PPO.metrics, "pairs", "progress"),
    learner_metrics=(*GRPO.learner_metrics, *PREFERENCE_NAMES),
    learned_by=PREFERENCES,
)
AGENTEVOL = AlgorithmEntry(
    "LMGameAgentEvol",
    algorithm="rllib_lmgame.algorithms.agentevol:LMGameAgentEvol",
    config="rllib_lmgame.algorithms.agentevol:LMGameAgentEvolConfig",
    sections={**SFT.sections, "agentevol": Section(EvolutionOptions)},
    metrics=("evolution", "levels_solved", "kept_episodes", "imitated_episodes", LEFT_OUT, "progress"),
    learner_metrics=SFT.learner_metrics,
    learned_by=SUPERVISED,
)


def _of_action_values(name: str, group: type, *more: str) -> AlgorithmEntry:
    return dataclasses.replace(
        SFT,
        name=name,
        algorithm=f"rllib_lmgame.algorithms.action_values:{name}",
        config=f"rllib_lmgame.algorithms.action_values:{name}Config",
        sections={**SFT.sections, ACTION_VALUES: Section(group)},
        learner_metrics=(*SFT.learner_metrics, *ACTION_VALUE_NAMES, *more),
    )


MC = _of_action_values("LMGameMC", ReturnValueOptions)
CQL = _of_action_values("LMGameCQL", TargetValueOptions)
ILQL = _of_action_values("LMGameILQL", ExpectileValueOptions, "v_loss", "v_mean")
OWN: Mapping[str, AlgorithmEntry] = {entry.name: entry for entry in (PPO, GRPO, SFT, DPO, AGENTEVOL, MC, CQL, ILQL)}
"""The algorithms of this package by name."""
ANY = dataclasses.replace(
    PPO,
    name="",
    sections={name: each for entry in OWN.values() for name, each in entry.sections.items()},
    metrics=tuple({name: None for entry in OWN.values() for name in entry.metrics}),
)
"""The sections and metrics of all of them, to check the keys of a file whose algorithm does not exist."""


def find_entry(name: str) -> AlgorithmEntry:
    """The entry of a name, at an import path, or of the class there. Raises: ConfigError: if there is none."""
    found = import_path(name, "run") if ":" in name else OWN.get(name)
    if found is None:
        raise unknown_algorithm(name)
    entry = found if isinstance(found, AlgorithmEntry) else entry_of(found)
    if entry is None:
        raise ConfigError("run", f"{name} is neither an AlgorithmEntry nor an algorithm of this kind")
    return entry


def entry_of(cls: Any) -> AlgorithmEntry | None:
    """The entry of the class's default configuration, with the class's own name and path if it is inherited."""
    entry = getattr(_default_config(cls), "entry", None)
    if not isinstance(entry, AlgorithmEntry):
        return None
    path = f"{cls.__module__}:{cls.__qualname__}"
    return entry if entry.algorithm == path else dataclasses.replace(entry, name=cls.__name__, algorithm=path)


def reference(entry: AlgorithmEntry) -> str:
    """How to find an entry: its name if it is of this package, else its algorithm's import path."""
    known = OWN.get(entry.name)
    return entry.name if known is not None and known.algorithm == entry.algorithm else entry.algorithm


def unknown_algorithm(name: str, others: list[str] | None = None) -> ConfigError:
    """The error for an unknown name; ``others`` may be meant, beside this package's."""
    known = [*OWN, *(others or ())]
    folded = {other.lower(): other for other in known}
    match = folded.get(name.lower()) or folded.get(f"lmgame{name.lower()}") or nearest(name, known)
    hint = f"did you mean {match!r}?" if match else f"available: {', '.join(known)}, or package.module:Class"
    return ConfigError("run", f"there is no algorithm {name!r}; {hint}")


def _default_config(cls: Any) -> Any:
    return cls.get_default_config() if isinstance(cls, type) and hasattr(cls, "get_default_config") else None

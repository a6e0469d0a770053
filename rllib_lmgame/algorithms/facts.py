"""What plug-ins say of a configuration, for the rules of :mod:`rllib_lmgame.config.rules`; asked when a rule asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.plugin import asking
from rllib_lmgame.base.registry import ENGINES, ESTIMATORS, OBJECTIVES
from rllib_lmgame.config.algorithms import PREFERENCES, TOKEN_PPO, WITHOUT_VALUES
from rllib_lmgame.inference.registry import Engine
from rllib_lmgame.learners.options import GROUP


class RunFacts:
    """Facts of a whole run; ``rllib`` is its configuration, for RLlib's keys that no group declares."""

    def __init__(self, config: Any) -> None:
        self.rllib = config

    @cached_property
    def compares(self) -> str | None:
        """Which option compares the episodes of a group, if one does."""
        if self.rllib.entry.learned_by == PREFERENCES:
            own = self.rllib.run.dpo
            return f"dpo.loss `{own.loss.type}`" if own.data is None else None
        if self.rllib.entry.learned_by != TOKEN_PPO:
            return None
        found = (PolicyFacts(self.rllib, policy).compares for policy in self.rllib.trained_policies())
        return next((option for option in found if option), None)

    @cached_property
    def plays_on(self) -> bool:
        """Whether an estimator wants rollouts from states."""
        return bool(state_rollouts(self.rllib))

    @cached_property
    def engine(self) -> Engine:
        """The engine; one that is brought along must have what it is asked for."""
        options = self.rllib.run.inference
        engine: Engine = options.engine
        if engine.type not in ENGINES:  # This package's own need not be installed here.
            engine.engine_class("config.inference.engine")
            asks = {"weight_transport": options.over_devices, "sleep_during_update": options.sleep_during_update}
            for option in (option for option, asked in asks.items() if asked):
                engine.check_on_devices(f"config.inference.{option}")
        return engine


class PolicyFacts:
    """Facts of the update of one learning policy.

    Attributes:
        own: Dotted keys of its own options, from RLlib's overrides per module.
    """

    def __init__(self, config: Any, policy: str) -> None:
        self._config = config
        self._of_module = config.get_config_for_module(policy)
        self.own = config.run.own_keys(policy)

    @property
    def keeps_reference(self) -> bool:
        """Whether learners compare with a reference model: the KL penalty, the estimator, or the loss of pairs."""
        if self._config.entry.learned_by == PREFERENCES:
            return bool(self._config.run.dpo.loss.asks_reference)
        return bool(self._of_module.use_kl_loss or self.estimator.needs_reference)

    @property
    def half_precision(self) -> bool:
        """Whether DeepSpeed casts the weights and keeps float32 copies."""
        from rllib_lmgame.learners.engines.deepspeed_engine import half_dtype

        return half_dtype(self._config.run.deepspeed) is not None

    @property
    def hidden_last_layer(self) -> bool:
        """Whether DeepSpeed keeps a private float32 copy of the value head: half precision without ZeRO."""
        stage = ((self._config.run.deepspeed or {}).get("zero_optimization") or {}).get("stage", 0)
        return stage == 0 and self.half_precision

    @property
    def one_norm_each(self) -> bool:
        """Whether parts of a model can have bounds of their own on their gradients."""
        from rllib_lmgame.learners.engines.deepspeed_engine import optimizer_is_guarded

        return optimizer_is_guarded(self._config.run.deepspeed)

    @property
    def estimator(self) -> Any:
        """The :class:`~rllib_lmgame.learners.advantages.Estimator`."""
        return self._of_module.run.token_ppo.advantage_estimator

    @property
    def estimator_name(self) -> str:
        """Of the advantage estimator."""
        return str(self.estimator.type)

    @cached_property
    def objective(self) -> Any:
        """A new object of the objective."""
        from rllib_lmgame.learners.objectives import resolve_objective

        return resolve_objective(self._of_module.run.token_ppo.objective)

    @cached_property
    def needs_critic(self) -> bool:
        """Whether the update asks a value function, as the objective or else the estimator says."""
        return self._config.entry.learned_by not in WITHOUT_VALUES and self._objective_says("needs_critic")

    @property
    def compares(self) -> str | None:
        """The option that compares the episodes of a group: the estimator, else normalisation or the objective."""
        options = self._of_module.run.token_ppo
        if not self._objective_says("needs_groups"):
            return None
        if self.estimator.needs_groups:
            return f"token_ppo.advantage_estimator `{self.estimator_name}`"
        if options.normalize_advantages == GROUP:
            return f"token_ppo.normalize_advantages `{GROUP}`"
        return f"token_ppo.objective `{options.objective}`"

    def _objective_says(self, question: str) -> bool:
        from rllib_lmgame.learners.settings import LearnerSettings

        with below_config(), asking(f"asking `{self._of_module.run.token_ppo.objective}`", OBJECTIVES.key):
            return bool(getattr(self.objective, question)(LearnerSettings.from_config(self._of_module)))

    @property
    def without_critic(self) -> str:
        """Estimators that need none."""
        return ", ".join(name for name in ESTIMATORS if not ESTIMATORS[name].needs_critic)


def state_rollouts(config: Any) -> dict[str, int]:
    """Policies that learn whose estimators want rollouts from every state -> how many."""
    with below_config():
        found = {policy: PolicyFacts(config, policy).estimator.state_rollouts for policy in config.trained_policies()}
    return {policy: count for policy, count in found.items() if count}


@contextmanager
def below_config() -> Iterator[None]:
    """What a plug-in refuses stands below ``config``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"config.{error.path.removeprefix('config.')}", error.message) from None

"""What policies have of their own by RLlib's overrides per module: what may stand there, and how errors name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rllib_lmgame.algorithms.scheduled import ScheduledConfig
from rllib_lmgame.errors import ConfigError, nearest
from rllib_lmgame.learners.scheduled import own_keys
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.settings.schema import describe
from rllib_lmgame.settings.sections.rllib import SCHEDULED_KEYS, WITHOUT_EFFECT, without_effect

PATH = "config.algorithm_config_overrides_per_module"

_KEYS = (
    *(*SCHEDULED_KEYS, "use_kl_loss", "kl_target", "grad_clip", "grad_clip_by", "seed", "learner_config_dict"),
    *("token_ppo", "token_ppo_options", "text_rollouts", "text_rollout_options", "text_rollouts.reward_scale"),
)
"""What an update reads, beside the options of ``token_ppo``."""


def check_overrides(config: ScheduledConfig) -> None:
    """Check the overrides per module: of whom they are, their types and ranges, and that they act on one policy alone.

    An algorithm of one's own may read whatever it likes.

    Raises:
        ConfigError: naming the key.
    """
    overrides, trained = config.algorithm_config_overrides_per_module, config.trained_policies()
    if not isinstance(overrides, Mapping):
        raise ConfigError(PATH, f"expected a mapping from policies to options, got {describe(overrides)}")
    for policy, options in overrides.items():
        path = f"{PATH}.{policy}"
        if policy not in trained:
            match = nearest(policy, trained)
            hint = f"did you mean {match!r}?" if match else f"policies that learn: {', '.join(trained)}"
            raise ConfigError(path, f"{policy!r} is no policy that learns; {hint}")
        if not isinstance(options, Mapping):
            raise ConfigError(path, f"expected a mapping of options, got {describe(options)}")
        problem = None
        try:
            of_module = config.get_config_for_module(policy)
            for key, schedule in of_module.schedule_options.items():
                if config.schedule_options.get(key) != schedule:
                    raise ConfigError(f"{path}.{key}", "a policy's own option cannot follow a schedule; set a number")
        except ConfigError as error:
            key = error.path.removeprefix("config.")
            raise ConfigError(error.path if error.path.startswith(path) else f"{path}.{key}", error.message) from None
        except (ValueError, TypeError, AttributeError) as error:  # RLlib's own words, which name no policy.
            problem = ConfigError(path, str(error).strip().split("\n")[0])
        for key in sorted(own_keys(config, policy)) if config.entry in OWN.values() else ():
            if key in _KEYS or (key.startswith("token_ppo.") and key != "token_ppo.num_threads"):
                continue
            if key in WITHOUT_EFFECT:
                raise ConfigError(f"{path}.{key}", without_effect(key).message)
            where = f"policies.{policy}.{key}" if key == "language_model" else key
            raise ConfigError(f"{path}.{key}", f"cannot be a policy's own; set config.{where}")
        if problem is not None:
            raise problem


@contextmanager
def own_options_named(config: ScheduledConfig, policy: str) -> Iterator[None]:
    """A :class:`ConfigError` raised inside, about a policy's options, names the policy's own where it has any."""
    try:
        yield
    except ConfigError as error:
        key, own = error.path.removeprefix("config."), own_keys(config, policy)
        if key.partition(".")[0] in {option.partition(".")[0] for option in own}:
            raise ConfigError(f"{PATH}.{policy}.{key}", error.message) from None
        theirs = f"; {policy} has {', '.join(sorted(own))} of its own" if own else ""
        raise ConfigError(error.path, f"{error.message}{theirs}") from None

"""What a trial asks the cluster for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.check import CheckedExperiment


@dataclass(frozen=True)
class ResourceRequest:
    """Resources of one trial.

    Attributes:
        bundles: Resources of each process group, e.g. ``{"CPU": 1.0}``; each is placed on one node.
        strategy: Placement strategy of the bundles.
    """

    bundles: tuple[dict[str, float], ...]
    strategy: str

    @property
    def total(self) -> dict[str, float]:
        """Sum over the bundles."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            total.update(bundle)
        return dict(total)

    def lines(self) -> list[str]:
        """The request as text, equal bundles counted together."""
        counted = Counter(tuple(sorted(b.items())) for b in self.bundles)
        lines = [f"{count} x {_text(dict(bundle))}" for bundle, count in counted.items()]
        return [*lines, f"in all {_text(self.total)}, placed with {self.strategy}"]


def request_of(experiment: CheckedExperiment) -> ResourceRequest:
    """What one trial of an experiment asks for; the largest request if the search space changes it."""
    requests = [_request(experiment, config) for config in experiment.configs]
    return max(requests, key=lambda r: (r.total.get("GPU", 0), r.total.get("CPU", 0)))


def _request(experiment: CheckedExperiment, config: Any) -> ResourceRequest:
    try:
        factory = experiment.algorithm.cls.default_resource_request(config)  # type: ignore[attr-defined]
    except ConfigError as error:
        raise experiment.spec.source.attach(error, "config") from None
    return ResourceRequest(tuple(dict(b) for b in factory.bundles), str(factory.strategy))


def _text(bundle: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in bundle.items()) or "nothing"

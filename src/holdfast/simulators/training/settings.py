"""Settings of a training run as plain records, free of JAX for the command line's sake."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from holdfast._support.arguments import check_whole_number

KERNELS = ("auto", "gaussian-mixture", "categorical", "tilted")
GRADIENTS = ("score", "pathwise")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def _positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name}: expected a number over 0, got {value!r}")


@dataclasses.dataclass(frozen=True)
class AdversarySettings:
    """How hard nature works against the present policy.

    What such adversaries reach where the worst case is known, `benchmarks/adversary_strength.py` prints.

    Arguments:
        kernel: "gaussian-mixture", "categorical" or "tilted"; "auto" takes the one that fits the noise.
        gradient: "score", or "pathwise" where dynamics, signal and critic are differentiable.
        updates: batches drawn for each adversary before the policy moves.
        batch_size: steps in each of them.
        epochs: passes over each.
        minibatches: parts of a pass.
        learning_rate: of Adam.
        clip: a score-function step stops counting where the density has moved by this share.
        hidden: layers of the network; none where the environment is a table.
        components: of the mixture.
        candidates: of the tilted kernel.
    """

    kernel: str = "auto"
    gradient: str = "score"
    updates: int = 2
    batch_size: int = 15_000
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 3e-3
    clip: float = 0.2
    hidden: tuple[int, ...] = (64, 32)
    components: int = 2
    candidates: int = 64

    def __post_init__(self) -> None:
        _one_of("kernel", self.kernel, KERNELS)
        _one_of("gradient", self.gradient, GRADIENTS)
        for name in ("updates", "batch_size", "epochs", "minibatches", "components"):
            check_whole_number(name, getattr(self, name), least=1)
        check_whole_number("candidates", self.candidates, least=2)
        _positive("learning_rate", self.learning_rate)
        _positive("clip", self.clip)

    def episodes(self, horizon: int) -> int:
        """Episodes in a batch: enough for its steps, and the same number in every part of it."""
        enough = math.ceil(self.batch_size / horizon)
        return math.ceil(enough / self.minibatches) * self.minibatches


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides a training run but the environment, the algorithm and the seeds.

    Arguments:
        radius: of the KL ball of the disturbance around its nominal distribution, at every step.
        cost_limit: of each cost; empty takes the environment's own.
        limit_on: "episode" limits the undiscounted cost of an episode, whose horizon is its end;
            "discounted" the discounted cost, with the critic going on where an episode is cut.
        iterations: policy updates.
        batch_size: steps drawn under each kernel for one update.
        discount: of the reward, and of costs with limit_on="discounted"; None takes the simulator's own.
        trust_region: δ, the KL of one update.
        hidden: layers of the policy and of each critic.
        reward_gae: λ of the reward's advantages.
        cost_gae: λ of the costs' advantages.
        cg_steps: conjugate gradient steps.
        damping: added to the Fisher matrix's diagonal, in units of that diagonal's mean.
        fisher_share: share of the batch in Fisher-vector products.
        line_search_decay: factor from one try to the next.
        line_search_tries: how many.
        critic_epochs: passes over the batch.
        critic_minibatches: parts of a pass.
        critic_learning_rate: of Adam.
        normalise: observations and features in units of their spread.
        limit_confidence: a measured cost counts with so many of its standard errors on top.
        limit_margin: the share of the limit that it is kept away from it, besides.
        limit_gain: how fast the inner limit follows what is measured; 0 turns that off.
        evaluation_share: size of the nominal batch of each iteration, in batches.
        adversary: how hard nature works.
    """

    radius: float = 0.0
    cost_limit: tuple[float, ...] = ()
    limit_on: str = "episode"
    iterations: int = 100
    batch_size: int = 50_000
    discount: float | None = None
    trust_region: float = 0.01
    hidden: tuple[int, ...] = (64, 32)
    reward_gae: float = 0.95
    cost_gae: float = 0.95
    cg_steps: int = 10
    damping: float = 1.0
    fisher_share: float = 0.2
    line_search_decay: float = 0.8
    line_search_tries: int = 15
    critic_epochs: int = 4
    critic_minibatches: int = 8
    critic_learning_rate: float = 2e-3
    normalise: bool = True
    limit_confidence: float = 1.0
    limit_margin: float = 0.1
    limit_gain: float = 0.2
    evaluation_share: float = 0.2
    adversary: AdversarySettings = AdversarySettings()

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, int | float) and 0 <= self.radius < math.inf):
            raise ValueError(f"radius: expected a finite number of at least 0, got {self.radius!r}")
        _one_of("limit_on", self.limit_on, ("episode", "discounted"))
        for limit in self.cost_limit:
            if not math.isfinite(limit):
                raise ValueError(f"cost_limit: expected finite numbers, got {limit!r}")
        for name in (
            "iterations",
            "batch_size",
            "cg_steps",
            "line_search_tries",
            "critic_epochs",
            "critic_minibatches",
        ):
            check_whole_number(name, getattr(self, name), least=1)
        for name in ("trust_region", "damping", "critic_learning_rate"):
            _positive(name, getattr(self, name))
        if self.discount is not None and not 0 <= self.discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {self.discount!r}")
        for name in ("reward_gae", "cost_gae"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: expected a number in [0, 1], got {value!r}")
        for name in ("fisher_share", "line_search_decay", "evaluation_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected in (0, 1], got {getattr(self, name)!r}")
        for name in ("limit_margin", "limit_gain"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected in [0, 1), got {getattr(self, name)!r}")
        if not 0 <= self.limit_confidence < math.inf:
            raise ValueError(
                f"limit_confidence: expected at least 0, got {self.limit_confidence!r}"
            )
        for size in self.hidden:
            check_whole_number("hidden", size, least=1)

    def to_dict(self) -> dict[str, Any]:
        """The settings as values that JSON can hold; `from_dict` reads them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`.

        Raises:
            ValueError: a key is not a setting; the message names it.
        """
        given = _known(cls, values)
        if "adversary" in given:
            given["adversary"] = AdversarySettings(**_known(AdversarySettings, given["adversary"]))
        return cls(**given)


def _known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    for key in values:
        if key not in names:
            raise ValueError(
                f"{key}: not one of the settings of training, {', '.join(sorted(names))}"
            )
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

"""Settings of a training run, and the static plan made of them. This module does not import JAX."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from holdfast._support.arguments import check_whole_number

if TYPE_CHECKING:
    from holdfast.simulators.environment import Environment

# Every seed has its own networks and batches in memory, side by side.
MOST_SEEDS = 10_000

_CHOICES = {
    "kernel": (
        "auto",
        "mean-shift",
        "gaussian-mixture",
        "categorical",
        "tilted",
        "direction-search",
    ),
    "gradient": ("score", "pathwise"),
    "limit_on": ("episode", "discounted"),
    "weighting": ("steps", "discounted"),
    "trust_region_on": ("reward", "all"),
}
# Fields of type float by the numbers that they accept.
_RANGES: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    ("learning_rate clip damping", "a number over 0", lambda x: 0 < x < math.inf),
    (
        "critic_learning_rate trust_region initial_std",
        "a number over 0",
        lambda x: 0 < x < math.inf,
    ),
    ("fisher_share line_search_decay", "a number in (0, 1]", lambda x: 0 < x <= 1),
    ("evaluation_share", "a number in (0, 1]", lambda x: 0 < x <= 1),
    ("reward_gae cost_gae", "a number in [0, 1]", lambda x: 0 <= x <= 1),
    ("discount limit_margin limit_gain", "a number in [0, 1)", lambda x: 0 <= x < 1),
    ("radius limit_confidence", "a finite number of at least 0", lambda x: 0 <= x < math.inf),
)


def _check_values(record: Any) -> None:
    """Raise a ValueError that names the first field whose value is out of range."""
    for field in dataclasses.fields(record):
        name, value = field.name, getattr(record, field.name)
        if field.type == "int":
            check_whole_number(name, value, least={"candidates": 2, "memory": 0}.get(name, 1))
        if value not in _CHOICES.get(name, (value,)):
            choices = ", ".join(_CHOICES[name])
            raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
        for names, expected, accepts in _RANGES:
            checked = name in names.split() and (name, value) != ("discount", None)
            if checked and not (isinstance(value, int | float) and accepts(value)):
                raise ValueError(f"{name}: expected {expected}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class AdversarySettings:
    """Settings of the adversaries that search for worst-case kernels.

    `benchmarks/adversary_strength.py` prints the share of the true worst case that they find.

    Arguments:
        kernel: "mean-shift", "gaussian-mixture", "categorical", "tilted", "direction-search" (for
            parameters that are drawn once per episode), or "auto": the direction search for one or two
            such parameters, otherwise the learned kernel that fits the environment's disturbance.
        gradient: "score", or "pathwise" if dynamics, signal and critic are differentiable.
        updates: batches drawn for each adversary before each policy update.
        batch_size: steps in each of these batches.
        epochs: passes over each batch.
        minibatches: parts of a pass.
        learning_rate: Adam learning rate of the kernel.
        clip: largest relative change of the density that a score-function step rewards.
        hidden: hidden layer sizes of the kernel's network; tables use none.
        components: components of the Gaussian mixture.
        candidates: disturbances among which the tilted kernel chooses, and directions that a direction
            search tries.

    Example:
        >>> import holdfast as hf
        >>> hf.AdversarySettings("tilted", updates=1).candidates
        64
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
        _check_values(self)

    def episodes(self, horizon: int) -> int:
        """Return the episodes of a batch: at least `batch_size` steps, in minibatches of equal size."""
        enough = math.ceil(self.batch_size / horizon)
        return math.ceil(enough / self.minibatches) * self.minibatches


@dataclasses.dataclass(frozen=True)
class StaticSettings:
    """The settings that are compiled into the training program; see `Settings` for the fields."""

    limit_on: str = "episode"
    weighting: str = "steps"
    trust_region_on: str = "reward"
    batch_size: int = 50_000
    discount: float | None = None
    hidden: tuple[int, ...] = (64, 32)
    memory: int = 0
    initial_std: float = 1.0
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
    limit_margin: float = 0.15
    limit_gain: float = 0.2
    evaluation_share: float = 0.2
    adversary: AdversarySettings = AdversarySettings()

    def __post_init__(self) -> None:
        _check_values(self)
        for size in self.hidden:
            check_whole_number("hidden", size, least=1)


@dataclasses.dataclass(frozen=True)
class Settings(StaticSettings):
    """Settings of a training run, apart from the environment, the algorithm and the seeds.

    `radius`, `cost_limit` and `trust_region` are traced arguments of the compiled program: runs that
    differ only in them and in `iterations` share one program.

    Arguments:
        radius: radius of the KL ball around the nominal disturbance, at every step.
        cost_limit: limit of each cost; empty for the environment's own limits.
        iterations: policy updates.
        trust_region: δ, the largest KL divergence of one policy update.
        limit_on: "episode" limits the undiscounted cost of an episode that ends at the horizon;
            "discounted" limits the discounted cost, and the critic supplies the value at the horizon.
        weighting: "steps" counts every step of an episode alike in the reward's surrogate, the KL
            divergence and the Fisher products; "discounted" counts step t by discount^t, as in the
            paper. Unit weights are a biased gradient of the discounted reward; discount^t leaves little
            to learn from after the first 1/(1 − discount) steps. A cost always has the weights of its
            limit.
        trust_region_on: "reward" measures the KL divergence of an update in the states visited under
            the reward's kernel, as in the paper; "all" under every signal's kernel, and the largest
            counts. Worst-case kernels that lie far apart lead to different states, and an update that
            is small in one set of states can be large in the other.
        batch_size: steps drawn under each kernel for one update.
        discount: discount of the reward, and of the costs with limit_on="discounted"; None for the
            environment's own discount.
        hidden: hidden layer sizes of the policy and of each critic.
        memory: number of past observations, with the actions taken there, that the policy sees beside
            the current one. A policy with a memory can identify quantities that it does not observe,
            such as a mass that is drawn once an episode.
        initial_std: initial standard deviation of vector actions, in units in which the action space
            is [−1, 1].
        reward_gae: λ of the reward's generalised advantages.
        cost_gae: λ of the costs' generalised advantages.
        cg_steps: conjugate gradient steps.
        damping: multiple of the mean diagonal of the Fisher matrix that is added to its diagonal.
        fisher_share: fraction of the batch used in Fisher-vector products.
        line_search_decay: factor on the step from one try to the next.
        line_search_tries: largest number of tries.
        critic_epochs: passes over the batch when critics are fitted.
        critic_minibatches: parts of a pass.
        critic_learning_rate: Adam learning rate of the critics.
        normalise: whether observations and features are normalised by their running mean and spread.
        limit_confidence: number of standard errors added to the measured cost.
        limit_margin: safety margin, as a fraction of the limit. With 0.1, five agents on Point Gather
            had attacked costs of 0.096 to 0.102 (mean 0.098, standard deviation 0.0024) at limit 0.1,
            under an attack stronger than the adversary in training. With 0.15 the mean is three
            standard deviations below the limit.
        limit_gain: step size with which the inner limit follows the measured cost; 0 fixes it.
        evaluation_share: size of each iteration's measurements under the nominal kernel and of most
            likely actions, as a fraction of `batch_size`.
        adversary: settings of the adversaries.

    Example:
        >>> import holdfast as hf
        >>> settings = hf.Settings(radius=0.2, cost_limit=(0.1,))
        >>> hf.Settings.from_dict(settings.to_dict()) == settings
        True
    """

    radius: float = 0.0
    cost_limit: tuple[float, ...] = ()
    iterations: int = 100
    trust_region: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        for limit in self.cost_limit:
            if not math.isfinite(limit):
                raise ValueError(f"cost_limit: expected finite numbers, got {limit!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values; `from_dict` reads them back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings with these values, of any number or sequence type.

        Raises:
            ValueError: a key is not a setting, or a value is out of range; the message names it.
        """
        given = _plain(cls, values)
        if not isinstance(given.get("cost_limit", ()), tuple):
            given["cost_limit"] = (given["cost_limit"],)
        adversary = given.pop("adversary", {})
        if isinstance(adversary, AdversarySettings):
            adversary = dataclasses.asdict(adversary)
        if not isinstance(adversary, Mapping):
            raise ValueError(
                f"adversary: expected AdversarySettings or a mapping, got {adversary!r}"
            )
        return cls(**given, adversary=AdversarySettings(**_plain(AdversarySettings, adversary)))

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings in a file of this version or an older one."""
        # Version 0.1.0 had no such setting and counted step t by discount^t.
        return cls.from_dict({"weighting": "discounted", **values})

    @property
    def static(self) -> StaticSettings:
        """The settings that are compiled into the training program."""
        fields = dataclasses.fields(StaticSettings)
        return StaticSettings(**{field.name: getattr(self, field.name) for field in fields})


def read_settings(given: Mapping[str, Any], steps: int | None = None) -> Settings:
    """Return the settings from the arguments of `train`.

    Arguments:
        given: fields of `Settings`; `cost_limit` may be one number or None.
        steps: simulator steps in the batches of policy updates, in place of `iterations`.

    Raises:
        ValueError: a value cannot be used; the message names it.
    """
    values = {k: v for k, v in given.items() if not (k == "cost_limit" and v is None)}
    try:
        settings = Settings.from_dict(values)
    except TypeError as error:
        raise ValueError(f"settings: {error}") from error
    if steps is None:
        return settings
    if "iterations" in given:
        raise ValueError("steps: give either steps or iterations, not both")
    check_whole_number("steps", steps, least=1)
    return dataclasses.replace(settings, iterations=-(-int(steps) // settings.batch_size))


def _plain(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as Python numbers and tuples, with integers as floats in float fields."""
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}

    def plain(value: Any, name: str) -> Any:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return tuple(plain(each, name) for each in value)
        return float(value) if type(value) is int and "float" in types[name] else value

    for key in given:
        if key not in types:
            raise ValueError(f"{key}: not a training setting; there are {', '.join(sorted(types))}")
    return {name: plain(value, name) for name, value in given.items()}


def cost_limits(env: Environment, settings: Settings) -> tuple[float, ...]:
    """Return the limit of every cost: those of the settings, or the environment's own.

    Raises:
        ValueError: the number of limits is not the number of costs.
    """
    limits = settings.cost_limit or env.cost_limits or ()
    costs = len(env.cost_names)
    if len(limits) != costs:
        known = ", ".join(env.cost_names) or "none"
        raise ValueError(
            f"cost_limit: {env.name} has {costs} cost(s) ({known}), got {len(limits)} limit(s)"
        )
    return tuple(limits)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a training run; a compiled program belongs to one plan.

    Attributes:
        settings: static settings.
        discounts: discount of the reward, then of every cost.
        robust: whether every signal has its own worst-case kernel; otherwise all use the nominal one.
        constrained: whether the limits are enforced.
        devices: number of devices over which the episodes of a batch are divided.
        algorithm_settings: settings record of the algorithm, or None if it has none.
        first_state: function of the plan and the initial policy that returns the algorithm's own
            state, or None if it has none.
    """

    settings: StaticSettings
    discounts: tuple[float, ...]
    robust: bool
    constrained: bool
    devices: int = 1
    algorithm_settings: Any = None
    first_state: Callable[..., Any] | None = None

    @classmethod
    def create(cls, env: Environment, settings: Settings, **fields: Any) -> Self:
        """Return the plan for an environment; `fields` are those after `discounts`.

        Raises:
            ValueError: neither the settings nor the environment have a discount.
        """
        discount = settings.discount if settings.discount is not None else env.discount
        if discount is None:
            raise ValueError(f"discount: {env.name} has no discount of its own; pass discount=")
        of_costs = 1.0 if settings.limit_on == "episode" else discount
        return cls(settings.static, (discount, *[of_costs] * len(env.cost_names)), **fields)

    @property
    def gaes(self) -> tuple[float, ...]:
        """λ of the generalised advantages of the reward, then of every cost."""
        return (self.settings.reward_gae, *[self.settings.cost_gae] * (len(self.discounts) - 1))

    @property
    def decays(self) -> tuple[float, ...]:
        """Ratio of the weights of consecutive steps, for the reward, then for every cost.

        A cost's surrogate has the weights of its limit, so that gradient and margin share a unit.
        """
        of_reward = self.discounts[0] if self.settings.weighting == "discounted" else 1.0
        return (of_reward, *self.discounts[1:])

    @property
    def bootstrap(self) -> bool:
        """Whether the critic supplies the value of an episode that the horizon cuts."""
        return self.settings.limit_on == "discounted"

    def episodes(self, env: Environment, share: float = 1.0) -> int:
        """Return the episodes of a batch: enough for its steps if no episode ends early."""
        return max(2, math.ceil(round(share * self.settings.batch_size) / env.horizon))

    def steps(self, env: Environment) -> int:
        """Return the steps simulated for one update of one policy, under all kernels."""

        def drawn(episodes: int) -> int:
            return math.ceil(episodes / self.devices) * self.devices * env.horizon

        measured = drawn(self.episodes(env, self.settings.evaluation_share))
        costs = len(self.discounts) - 1
        if not self.robust:
            return drawn(self.episodes(env)) + min(costs, 1) * measured
        adversary = self.settings.adversary
        learned_from = adversary.updates * drawn(adversary.episodes(env.horizon))
        likely = min(costs, 1) * measured
        return (1 + costs) * (drawn(self.episodes(env)) + learned_from + likely) + measured

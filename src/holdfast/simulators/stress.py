"""The verb `stress`: a trained policy under kernels that it was not trained on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from holdfast._support.arguments import check_whole_number
from holdfast.simulators.certificates.attack import FrozenPolicy, played_length
from holdfast.simulators.certificates.attack_plan import (
    AttackPlan,
    Callback,
    or_auto,
    planned_tests,
)
from holdfast.simulators.certificates.stress_result import ATTACK, DRAWN, LIKELY, Stress
from holdfast.simulators.check_environment import check_disturbed
from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.failures import host_failures
from holdfast.simulators.nature.adversary import Nature, kernel_name
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.foreign import agents_of, policy_failures
from holdfast.simulators.training.rollout import Signal
from holdfast.simulators.training.settings import AdversarySettings, Plan, cost_limits

# Radii around the paper's 0.2, each twice the one before: a worst case grows with the square root.
RADII = (0.05, 0.1, 0.2, 0.4)
# 20,000 episodes measure a mean within 0.7 % of an episode's standard deviation.
RESTARTS, EPISODES = 2, 20_000
# A step outside JAX takes about a thousand times as long, so the default number of episodes is 100
# instead of 20,000.
_HOSTED_RADIUS, _HOSTED_RESTARTS, _HOSTED_EPISODES = 0.2, 1, 100
# Batches of an attack. An accelerator draws four times as many episodes in little more time.
UPDATES, _HOSTED_UPDATES, _ACCELERATOR_FACTOR = 200, 100, 4
_BATCH, _HIDDEN = 15_000, (128, 64)
# A tilted kernel looks ahead and learns only a critic, which takes a tenth of the updates.
_TILTED_SHARE, _TILTED_BATCH = 10, 10_000


def stress(
    agent: Any,
    *,
    radii: Sequence[float] | str | None = "auto",
    noise: Sequence[float] | str | None = "auto",
    action_noise: Sequence[float] | str | None = "auto",
    parameters: Mapping[str, Sequence[float]] | None = None,
    restarts: int | None = None,
    episodes: int | None = None,
    updates: int | None = None,
    kernels: str | AdversarySettings | Sequence[str | AdversarySettings] | None = None,
    deterministic: bool | None = None,
    environment: Environment | None = None,
    cost_limit: float | Sequence[float] | None = None,
    trust: bool = False,
    seed: int = 0,
    confidence: float = 0.95,
    callback: Callback | None = None,
    **parameter_values: Sequence[float],
) -> Stress:
    """Return the reward and the costs of a trained policy under kernels it was not trained on.

    *Attacks.* For every radius, and for the reward and each cost separately, new adversaries are
    trained against the fixed policy: `restarts` of every kind in `kernels`. The strongest on held-out
    episodes is kept; an adversary of a smaller radius counts too, since it lies in the larger ball. The
    reported values come from further episodes, so the selection does not bias them. They are lower
    bounds on the worst case: a better adversary could find worse.

    *Noise.* The environment's Gaussian noise is multiplied by a factor, or noise is added to actions.

    *Parameters.* The environment's physics is changed, under its nominal noise.

    The reward is a plain sum if the agent was trained with limit_on="episode", otherwise discounted.

    Arguments:
        agent: one agent, or several seeds of one run; rows are then means over agents. Also a policy of
            another library, as in `as_agent`, with `environment`; attacks use its actions only.
        radii: radii of the attacks; None leaves attacks out. "auto" takes 0.05, 0.1, 0.2 and 0.4 for a
            simulator in JAX. For a simulator outside JAX it takes the radius of the training, and
            neither attacks nor noise if `parameters` are given.
        noise: factors on a Gaussian disturbance; None leaves them out.
        action_noise: standard deviations of noise on vector actions, in the environment's units; None
            leaves them out. "auto" takes a few levels wherever the test applies, for either.
        parameters: values to try for each parameter of the environment, one at a time.
        restarts: adversaries of each kind for each radius and signal; default 2, outside JAX 1.
        episodes: episodes measured in each row, for each agent, at least 2; default 20,000, outside
            JAX 100.
        updates: batches on which a learned adversary is trained; default 200, outside JAX 100. A tilted
            one takes a tenth.
        kernels: kinds of adversaries, as names or settings; by default every kind that fits the noise:
            "mean-shift" and "gaussian-mixture", or "categorical"; in JAX also "tilted"; for parameters
            drawn once per episode also "direction-search".
        deterministic: True for most likely actions only, False for actions drawn as in training only;
            None tests both, since a policy may be used either way. A function has one way to act.
        environment: the simulator, if the agent has none or another one is wanted.
        cost_limit: limit of each cost, for a policy of another library.
        trust: whether code that is stored in the file of such a policy may run.
        seed: seed of everything that is drawn.
        confidence: level of the bootstrap intervals.
        callback: called with the number of steps done, their total, and the next step.
        **parameter_values: more `parameters`, as in stress(agent, speed=[0.8, 1.2]).

    Raises:
        ValueError: an argument cannot be used; the message names it, before any work.
        FloatingPointError: the simulator returned a number that is not finite.
        TrainingError: a simulator outside JAX failed.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
        >>> found = hf.stress(agent, radii=None, episodes=200)  # without attacks, to be quick
        >>> [row.label for row in found.rows]
        ['nominal', 'nominal, most likely actions']
        >>> found.rows[0].reward.low < found.rows[0].reward.mean < found.rows[0].reward.high
        True
    """
    agents = agents_of(agent, environment, cost_limit=cost_limit, trust=trust)
    env = common_environment(agents, environment)
    twice = sorted((parameters or {}).keys() & parameter_values.keys())
    if twice:
        raise ValueError(f"parameters: {twice[0]} is given twice")
    varied = {**(parameters or {}), **parameter_values}
    if env.is_hosted and (varied or not _is_disturbed(env)):
        radii, noise, action_noise = (
            None if each == "auto" else each for each in (radii, noise, action_noise)
        )
    hosted = (agents[0].settings.radius or _HOSTED_RADIUS,)
    radii = or_auto("radii", radii, hosted if env.is_hosted else RADII)
    if restarts is None:
        restarts = _HOSTED_RESTARTS if env.is_hosted else RESTARTS
    if episodes is None:
        episodes = _HOSTED_EPISODES if env.is_hosted else EPISODES
    planned = planned_tests(
        env, radii=radii, noise=noise, action_noise=action_noise, parameters=varied
    )
    if deterministic not in (None, True, False):
        raise ValueError(f"deterministic: expected True, False or None, got {deterministic!r}")
    both = (DRAWN, LIKELY) if any(agent.draws_actions for agent in agents) else (DRAWN,)
    ways = {None: both, False: (DRAWN,), True: (LIKELY,)}[deterministic]
    tests = [test._replace(actions=way) for way in ways for test in planned]
    if updates is None:
        updates = _HOSTED_UPDATES if env.is_hosted else UPDATES
    check_whole_number("restarts", restarts, least=1)
    check_whole_number("updates", updates, least=1)
    check_measurement(episodes, seed, confidence)
    check_disturbed(env, max((test.level for test in tests if test.kind == ATTACK), default=0.0))
    kinds = _kinds(env, kernels, updates)
    frozen, limits = zip(*(frozen_agent(each, env) for each in agents), strict=True)
    if len(set(limits)) > 1:
        raise ValueError(f"agent: expected agents with the same limits, got {limits}")
    plan = AttackPlan(env, tests, kinds, restarts, episodes, seed, callback, len(agents))
    with contextlib.closing(env), host_failures(env), policy_failures(agents):
        found = [plan.run(each, i) for i, each in enumerate(frozen)]
    return Stress(
        agents=_labels(agents),
        cost_names=env.cost_names,
        limits=limits[0],
        rows=plan.rows(found, confidence),
        environment=env.description(),
        setup={
            "episodes": episodes,
            "restarts": restarts,
            "kernels": [dataclasses.asdict(kind) for kind in kinds],
            "actions": list(ways),
            "limit_on": agents[0].settings.limit_on,
            "steps_per_episode": frozen[0].length,
            "confidence": confidence,
            "seed": seed,
        },
    )


def check_measurement(episodes: int, seed: int, confidence: float) -> None:
    """Raise a ValueError unless an interval can be computed: it needs two episodes."""
    check_whole_number("episodes", episodes, least=2)
    check_whole_number("seed", seed, least=0)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")


def _is_disturbed(env: Environment) -> bool:
    noise = env.disturbance
    return not isinstance(noise, GaussianNoise) or any(noise.scale)


def common_environment(agents: tuple[Agent, ...], environment: Environment | None) -> Environment:
    """Return the simulator of all agents, or the given one.

    Raises:
        ValueError: there is no simulator, or it does not fit an agent.
    """
    if not agents or not all(isinstance(each, Agent) for each in agents):
        raise ValueError(f"agent: expected an Agent or a list of them, got {agents!r}")
    env = agents[0].environment if environment is None else environment
    if env is None:
        name = agents[0].description.get("name", "its simulator")
        raise ValueError(f"agent: it was saved without {name}; pass environment=")
    for each in agents:
        each.check_fits(env, "the policy")
        if environment is None and dict(each.description) != dict(agents[0].description):
            raise ValueError("agent: expected agents of one environment, got several")
        if each.settings.limit_on != agents[0].settings.limit_on:
            raise ValueError("agent: expected agents with the same limit_on, got both kinds")
    return env


def frozen_agent(
    agent: Agent, env: Environment, deterministic: bool = False
) -> tuple[FrozenPolicy, tuple[float, ...]]:
    """Return an agent's fixed policy in a simulator, and the agent's limits."""
    # An adversary weights steps as the reported sums do, whatever the weights of the training.
    weighting = "steps" if agent.settings.limit_on == "episode" else "discounted"
    settings = dataclasses.replace(agent.settings, cost_limit=agent.limits, weighting=weighting)
    limits = cost_limits(env, settings)
    plan = Plan.create(env, settings, robust=True, constrained=True)
    policy, observations = jax.tree.map(jnp.asarray, (agent.policy, agent.observations))
    frozen = FrozenPolicy(
        env=env,
        policy=policy,
        observations=observations,
        signals=Signal.of(plan),
        length=played_length(env.horizon, plan.discounts, plan.bootstrap),
        hidden=settings.hidden,
        critic_learning_rate=settings.critic_learning_rate,
        memory=settings.memory,
        deterministic=jnp.asarray(deterministic),
    )
    return frozen, limits


def _labels(agents: Sequence[Agent]) -> tuple[str, ...]:
    labels = [each.label for each in agents]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({i})" for i, label in enumerate(labels)]
    return tuple(labels)


def _kinds(
    env: Environment,
    kernels: str | AdversarySettings | Sequence[str | AdversarySettings] | None,
    updates: int,
) -> tuple[AdversarySettings, ...]:
    if kernels is None:
        gaussian = isinstance(env.disturbance, GaussianNoise)
        kernels = ("mean-shift", "gaussian-mixture") if gaussian else ("categorical",)
        kernels += () if env.is_hosted else ("tilted",)
        kernels += ("direction-search",) if gaussian and env.draws_once else ()
    if isinstance(kernels, str | AdversarySettings):
        kernels = (kernels,)
    if not kernels:
        raise ValueError("kernels: expected at least one; radii=None leaves attacks out")
    found = []
    for each in kernels:
        settings = each if isinstance(each, AdversarySettings) else attack_settings(each, updates)
        settings = dataclasses.replace(settings, kernel=kernel_name(env, settings))
        # Traced only, to raise now if the kernel does not fit the noise.
        jax.eval_shape(
            lambda settings=settings: Nature.create(
                jax.random.PRNGKey(0), env, jnp.ones(()), settings, (), 1e-3
            )
        )
        found.append(settings)
    return tuple(found)


def attack_settings(kernel: str, updates: int = UPDATES) -> AdversarySettings:
    """Return the settings with which `stress` trains a kind of adversary."""
    factor = 1 if jax.default_backend() == "cpu" else _ACCELERATOR_FACTOR
    if kernel == "tilted":
        few = max(1, updates // _TILTED_SHARE)
        return AdversarySettings(kernel, updates=few, batch_size=factor * _TILTED_BATCH)
    batch = factor * _BATCH
    return AdversarySettings(kernel, updates=updates, batch_size=batch, hidden=_HIDDEN)

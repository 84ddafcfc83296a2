"""The verb `stress`: a trained policy under kernels that it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from holdfast._support.arguments import check_whole_number
from holdfast.simulators.certificates.attack import Frozen, played_length
from holdfast.simulators.certificates.stress_bench import Bench, Callback, Tests, rows_of
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.adversary import Nature, kernel_name
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.training.learner import Plan
from holdfast.simulators.training.loop import check_disturbed, host_failure
from holdfast.simulators.training.settings import AdversarySettings

RADII = (0.05, 0.1, 0.2, 0.4)
KERNELS = ("auto", "tilted")
RESTARTS, EPISODES = 2, 20_000
# Steps outside JAX are a thousand times slower: less is tried there unless it is asked for.
_HOSTED_RADIUS, _HOSTED_RESTARTS, _HOSTED_EPISODES = 0.2, 1, 100
# Nature's lookahead replaces learning: a tilted kernel is as good as its critic, which is there soon.
_TILTED_SHARE, _TILTED_BATCH = 10, 10_000


def stress(
    agent: Agent | Sequence[Agent],
    *,
    radii: Sequence[float] | str | None = "auto",
    noise: Sequence[float] | str | None = "auto",
    action_noise: Sequence[float] | str | None = "auto",
    parameters: Mapping[str, Sequence[float]] | None = None,
    restarts: int | None = None,
    episodes: int | None = None,
    updates: int = 100,
    kernels: str | AdversarySettings | Sequence[str | AdversarySettings] | None = None,
    deterministic: bool = False,
    environment: Environment | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    callback: Callback | None = None,
    **parameter_values: Sequence[float],
) -> Stress:
    """Puts a trained policy under kernels that it was not trained on, and measures what is left.

    *Attacks.* For every radius, and for the reward and each cost on its own, fresh adversaries are
    trained against the frozen policy: of every kind in `kernels`, `restarts` of each. The strongest, by
    episodes of its own, is kept; one found within a smaller radius counts too, since it lies in the
    larger ball. What is reported comes from further episodes, so the choice does not colour it. The
    numbers say how bad it was found to get; a better adversary could find worse.

    *Noise.* The environment's Gaussian noise times a factor; or noise added to actions.

    *Parameters.* The environment with other physics, under its nominal noise.

    The reward is a plain sum where the agent was trained with limit_on="episode", otherwise discounted.

    Arguments:
        agent: one, or several seeds of one run: then rows are means over agents.
        radii: of attacks; None leaves them out. The nominal kernel is always there. "auto" takes a few
            where the simulator is JAX's own. Where it is stepped outside JAX, it takes the radius of the
            training, and no attack, and no noise either, where `parameters` are given.
        noise: factors on the disturbance, where that is Gaussian; None leaves it out.
        action_noise: standard deviations, in the environment's units, where actions are vectors; None
            leaves it out. "auto" for either takes a few where it can be done.
        parameters: values to try for each parameter of the environment, one at a time.
        restarts: adversaries of each kind for each radius and signal; 2 if left out, 1 outside JAX.
        episodes: that each row is the mean of, for each agent; 20,000 if left out, 100 outside JAX.
        updates: batches that a learned adversary is trained on; a tilted one takes a tenth.
        kernels: kinds of adversaries, by name or with all their settings; the learned kind that fits the
            noise and, in JAX, "tilted" if left out.
        deterministic: stress the most likely actions rather than those that are drawn as in training.
        environment: the simulator, where the agent has none or another one is meant.
        seed: of all that is drawn.
        confidence: of the bootstrap intervals.
        callback: called with the tests done, their number, and what comes next.
        **parameter_values: the same as `parameters`: stress(agent, speed=[0.8, 1.2]).

    Raises:
        ValueError: an argument cannot be used; the message names it, before any work.
        FloatingPointError: the simulator returned something that is not finite.
        TrainingError: a simulator outside JAX failed.

    Example:
        >>> from holdfast.simulators.stress import stress
        >>> from holdfast.simulators.train import train
        >>> from holdfast.environments.linear_gaussian import LinearGaussian
        >>> env = LinearGaussian(horizon=10)
        >>> agent = train(env, "cpo", cost_limit=40.0, iterations=1, batch_size=100)
        >>> found = stress(agent, radii=None, noise=[2], action_noise=None, episodes=200)
        >>> [row.label for row in found.rows]
        ['nominal', 'noise × 2']
    """
    given = (agent,) if isinstance(agent, Agent) else tuple(agent)
    env = common_environment(given, environment)
    varied = _merged(parameters, parameter_values)
    if radii == "auto":
        radii = _radii(env, given[0], varied)
    elif isinstance(radii, str):
        raise ValueError(f"radii: expected a list of numbers, 'auto' or None, got {radii!r}")
    if env.is_hosted:
        noise, action_noise = (
            None if each == "auto" and (varied or not _is_disturbed(env)) else each
            for each in (noise, action_noise)
        )
    if restarts is None:
        restarts = _HOSTED_RESTARTS if env.is_hosted else RESTARTS
    if episodes is None:
        episodes = _HOSTED_EPISODES if env.is_hosted else EPISODES
    tests = Tests.create(
        env, radii=radii, noise=noise, action_noise=action_noise, parameters=varied
    )
    for name, value in (("restarts", restarts), ("episodes", episodes), ("updates", updates)):
        check_whole_number(name, value, least=1)
    check_whole_number("seed", seed, least=0)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
    check_disturbed(env, max(tests.radii, default=0.0))
    kinds = _kinds(env, kernels, updates)
    frozen, limits = zip(*(frozen_agent(each, env, deterministic) for each in given), strict=True)
    if len(set(limits)) > 1:
        raise ValueError(f"agent: expected agents with the same limits, got {limits}")
    bench = Bench(env, tests, kinds, restarts, episodes, seed, callback, len(given))
    try:
        found = [bench.measure(each, i) for i, each in enumerate(frozen)]
    except jax.errors.JaxRuntimeError as error:
        raise host_failure(env, error) from None
    finally:
        env.close()
    return Stress(
        agents=_labels(given),
        cost_names=env.cost_names,
        limits=limits[0],
        rows=tuple(rows_of(tests, env.cost_names, found, seed, confidence)),
        environment=env.description(),
        setup={
            "episodes": episodes,
            "restarts": restarts,
            "kernels": [dataclasses.asdict(kind) for kind in kinds],
            "deterministic": bool(deterministic),
            "limit_on": given[0].settings.limit_on,
            "steps_per_episode": frozen[0].length,
            "confidence": confidence,
            "seed": seed,
        },
    )


def _is_disturbed(env: Environment) -> bool:
    noise = env.disturbance
    return not isinstance(noise, GaussianNoise) or any(noise.scale)


def _radii(
    env: Environment, agent: Agent, parameters: Mapping[str, Sequence[float]]
) -> Sequence[float] | None:
    if not env.is_hosted:
        return RADII
    if parameters or not _is_disturbed(env):
        return None
    return (agent.settings.radius or _HOSTED_RADIUS,)


def common_environment(agents: tuple[Agent, ...], environment: Environment | None) -> Environment:
    """The simulator of all agents, or the given one if it fits them."""
    if not agents or not all(isinstance(each, Agent) for each in agents):
        raise ValueError(f"agent: expected an Agent or a list of them, got {agents!r}")
    env = agents[0].environment
    if environment is not None:
        env = environment
    if env is None:
        name = agents[0].description.get("name", "its simulator")
        raise ValueError(f"agent: it was saved without {name}; pass environment=")
    for each in agents:
        inputs = each.policy.network.weights[0].shape[0]
        if inputs != env.observation_size or each.policy.space != env.action_space:
            raise ValueError(
                f"environment: {env.name} has {env.observation_size} observations and actions "
                f"{env.action_space}, the policy {inputs} and {each.policy.space}"
            )
        if environment is None and dict(each.description) != dict(agents[0].description):
            raise ValueError("agent: expected agents of one environment, got several")
        if each.settings.limit_on != agents[0].settings.limit_on:
            raise ValueError("agent: expected agents with the same limit_on, got both kinds")
    return env


def frozen_agent(
    agent: Agent, env: Environment, deterministic: bool
) -> tuple[Frozen, tuple[float, ...]]:
    """An agent that learns no more, in a simulator, and its limits."""
    settings = dataclasses.replace(agent.settings, cost_limit=agent.limits)
    plan = Plan.create(env, settings, robust=True, constrained=True)
    policy, observations = jax.tree.map(jnp.asarray, (agent.policy, agent.observations))
    frozen = Frozen(
        env=env,
        policy=policy,
        observations=observations,
        signals=plan.signals,
        length=played_length(env.horizon, plan.discounts, plan.bootstrap),
        hidden=settings.hidden,
        critic_learning_rate=settings.critic_learning_rate,
        deterministic=bool(deterministic),
    )
    return frozen, plan.limits


def _labels(agents: Sequence[Agent]) -> tuple[str, ...]:
    labels = [f"{agent.algorithm}-{agent.seed}" for agent in agents]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({i})" for i, label in enumerate(labels)]
    return tuple(labels)


def _kinds(
    env: Environment,
    kernels: str | AdversarySettings | Sequence[str | AdversarySettings] | None,
    updates: int,
) -> tuple[AdversarySettings, ...]:
    chosen = kernels
    if chosen is None:
        chosen = KERNELS[:1] if env.is_hosted else KERNELS
    if isinstance(chosen, str | AdversarySettings):
        chosen = (chosen,)
    if not chosen:
        raise ValueError("kernels: expected at least one; radii=None leaves attacks out")
    found = []
    for each in chosen:
        if isinstance(each, AdversarySettings):
            settings = each
        elif each == "tilted":
            few = max(1, updates // _TILTED_SHARE)
            settings = AdversarySettings("tilted", updates=few, batch_size=_TILTED_BATCH)
        else:
            settings = AdversarySettings(each, updates=updates)
        settings = dataclasses.replace(settings, kernel=kernel_name(env, settings))
        _check_fits(env, settings)
        found.append(settings)
    return tuple(found)


def _check_fits(env: Environment, settings: AdversarySettings) -> None:
    """Refuses a kind of kernel that does not fit the environment's noise."""

    def create() -> Nature:
        return Nature.create(jax.random.PRNGKey(0), env, jnp.ones(()), settings, (), 1e-3)

    jax.eval_shape(create)


def _merged(
    parameters: Mapping[str, Sequence[float]] | None, more: Mapping[str, Sequence[float]]
) -> dict[str, Sequence[float]]:
    both = sorted((parameters or {}).keys() & more.keys())
    if both:
        raise ValueError(f"parameters: {both[0]} is given twice")
    return {**(parameters or {}), **more}

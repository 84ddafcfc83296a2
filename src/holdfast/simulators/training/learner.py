"""What a training run carries from one iteration to the next, and what it never changes."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from holdfast.simulators.environment import Environment
from holdfast.simulators.nature.adversary import Nature, layers
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training.rollout import Batch, Sight, Signal
from holdfast.simulators.training.settings import Settings


@dataclasses.dataclass(frozen=True)
class Plan:
    """What stays the same through a run.

    Attributes:
        settings: as the user gave them.
        discounts: of the reward and of every cost.
        gaes: λ of their advantages.
        bootstrap: whether an episode that is cut goes on in the critic.
        limits: of the costs.
        robust: whether every signal has its own worst-case kernel, or all share the nominal one.
        constrained: whether the limits are enforced.
        devices: over which the episodes of every batch are divided.
    """

    settings: Settings
    discounts: tuple[float, ...]
    gaes: tuple[float, ...]
    bootstrap: bool
    limits: tuple[float, ...]
    robust: bool
    constrained: bool
    devices: int = 1

    @classmethod
    def create(
        cls,
        env: Environment,
        settings: Settings,
        *,
        robust: bool,
        constrained: bool,
        devices: int = 1,
    ) -> Self:
        """The plan for an environment.

        Raises:
            ValueError: limits and costs differ in number, or there is no limit or discount to take.
        """
        limits = settings.cost_limit or env.cost_limits or ()
        costs = len(env.cost_names)
        if len(limits) != costs:
            known = ", ".join(env.cost_names) or "none"
            raise ValueError(
                f"cost_limit: {env.name} has {costs} cost(s) ({known}), got {len(limits)} limit(s)"
            )
        discount = settings.discount if settings.discount is not None else env.discount
        if discount is None:
            raise ValueError(f"discount: {env.name} has none of its own, so one has to be given")
        episode = settings.limit_on == "episode"
        return cls(
            settings,
            (discount, *[1.0 if episode else discount] * costs),
            (settings.reward_gae, *[settings.cost_gae] * costs),
            not episode,
            tuple(limits),
            robust,
            constrained,
            devices,
        )

    @property
    def signals(self) -> Signal:
        """How the reward and every cost are added up, one after the other."""
        return Signal(jnp.asarray(self.discounts), jnp.asarray(self.gaes), self.bootstrap)

    def episodes(self, env: Environment, share: float = 1.0) -> int:
        """How many episodes a batch has: enough for the steps asked for, if none ends early."""
        return max(2, math.ceil(round(share * self.settings.batch_size) / env.horizon))

    def steps(self, env: Environment) -> int:
        """All steps simulated for one update of one policy, under every kernel."""

        def drawn(episodes: int) -> int:
            return math.ceil(episodes / self.devices) * self.devices * env.horizon

        if not self.robust:
            return drawn(self.episodes(env))
        adversary = self.settings.adversary
        learned_from = adversary.updates * drawn(adversary.episodes(env.horizon))
        measured = drawn(self.episodes(env, self.settings.evaluation_share))
        return len(self.discounts) * (drawn(self.episodes(env)) + learned_from) + measured


class Learner(eqx.Module):
    """The whole state of training one policy.

    Attributes:
        policy: the present one.
        sight: what it, the critics and the adversaries see.
        natures: kernel and critic of the reward and of every cost, along a leading axis.
        tightening: how far under its limit each cost is aimed, learned from what was measured.
        limits: of the costs; this and the next are here, as the radius is in the kernels, so that runs
            that differ in them share a compiled program.
        trust_region: δ.
        key: for everything that is still to be drawn.
        iteration: how many updates were made.
    """

    policy: Policy
    sight: Sight
    natures: Nature
    tightening: Float[Array, " costs"]
    limits: Float[Array, " costs"]
    trust_region: Float[Array, ""]
    key: PRNGKeyArray
    iteration: Int[Array, ""]

    @classmethod
    def create(cls, plan: Plan, env: Environment, key: PRNGKeyArray) -> Self:
        """A policy that acts alike everywhere, kernels close to nominal, blank normalisers."""
        settings = plan.settings
        policy_key, nature_key, key = jax.random.split(key, 3)
        hidden = layers(env, settings.hidden)
        policy = Policy.create(policy_key, env.observation_size, hidden, env.action_space)
        radius = jnp.asarray(settings.radius, jnp.float32) if plan.robust else None

        def nature(key: Array) -> Nature:
            rate = settings.critic_learning_rate
            return Nature.create(key, env, radius, settings.adversary, settings.hidden, rate)

        natures = jax.vmap(nature)(jax.random.split(nature_key, len(plan.discounts)))
        normalise = settings.normalise and not env.is_one_hot
        sight = Sight(
            Normaliser.create(env.observation_size) if normalise else None,
            Normaliser.create(env.feature_size) if normalise else None,
            Normaliser.create(env.nature_feature_size) if normalise and plan.robust else None,
            clock=settings.limit_on == "episode",
        )
        zero = jnp.zeros(len(plan.limits))
        limits = jnp.asarray(plan.limits, jnp.float32)
        delta = jnp.asarray(settings.trust_region, jnp.float32)
        return cls(policy, sight, natures, zero, limits, delta, key, jnp.array(0))

    def with_numbers(self, radius: Array, limits: Array, trust_region: Array) -> Self:
        """The same with other numbers in it; nothing else that `create` makes depends on them."""
        now = eqx.tree_at(lambda x: (x.limits, x.trust_region), self, (limits, trust_region))
        if not hasattr(self.natures.kernel, "radius"):
            return now
        radii = jnp.broadcast_to(radius, self.natures.kernel.radius.shape)
        return eqx.tree_at(lambda x: x.natures.kernel.radius, now, radii)


def looked_at(sight: Sight, batches: Batch) -> Sight:
    """The normalisers with these batches, along a leading axis, seen."""
    observations, features, nature = sight.observations, sight.features, sight.nature
    weight = batches.alive.astype(jnp.float32)
    if observations is not None:
        observations = observations.updated(batches.observations, weight)
    if features is not None:
        features = features.updated(batches.features[:, :-1], weight)
    if nature is not None:
        nature = nature.updated(batches.nature_features, weight)
    return Sight(observations, features, nature, sight.clock)

"""Policies and critics: small networks that accept any number of leading axes."""

from __future__ import annotations

import itertools
import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.devices import device_count
from holdfast.simulators.environment import Box, Discrete, Environment

# Inputs ten standard deviations from the mean are outliers; larger values would saturate the tanh.
CLIP = 10.0
# Added to variances. Inputs of about unit scale change by 5e-7, and a constant input is divided by 1e-3.
EPSILON = 1e-6


class MLP(eqx.Module):
    """A multi-layer perceptron with tanh; without hidden layers, one affine function."""

    weights: tuple[Float[Array, "inner outer"], ...]
    biases: tuple[Float[Array, " outer"], ...]

    @classmethod
    def create(cls, key: PRNGKeyArray, sizes: tuple[int, ...], *, last_scale: float = 1.0) -> Self:
        """Return a network whose weights have variance 1/inputs; the last layer is scaled down."""
        # All weights come from one draw, because every draw is compiled separately.
        drawn = jax.random.normal(key, (sum(i * o for i, o in itertools.pairwise(sizes)),))
        weights, biases, start = [], [], 0
        for i, (inner, outer) in enumerate(itertools.pairwise(sizes)):
            scale = (last_scale if i == len(sizes) - 2 else 1.0) / math.sqrt(inner)
            weights.append(scale * drawn[start : start + inner * outer].reshape(inner, outer))
            biases.append(jnp.zeros(outer))
            start += inner * outer
        return cls(tuple(weights), tuple(biases))

    def __call__(self, x: Float[Array, "*rows inner"]) -> Float[Array, "*rows outer"]:
        """Return the network's output."""
        rows = x.shape[:-1]
        # A CPU multiplies matrices of two axes fastest. Over several devices, joining axes would move
        # episodes between them.
        if device_count() == 1:
            x = x.reshape(math.prod(rows), x.shape[-1])
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(x @ weight + bias)
        x = x @ self.weights[-1] + self.biases[-1]
        return x.reshape(*rows, x.shape[-1])


def layers(env: Environment, hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Return the hidden layers; none for one-hot inputs, of which every function is affine."""
    return () if env.is_one_hot else hidden


class Normaliser(eqx.Module):
    """Running mean and variance of vectors, to scale inputs to about unit size."""

    mean: Float[Array, " size"]
    square: Float[Array, " size"]
    count: Float[Array, ""]

    @classmethod
    def create(cls, size: int) -> Self:
        """Return a normaliser that has seen no data and changes nothing."""
        return cls(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

    def __call__(self, x: Float[Array, "*rows size"]) -> Float[Array, "*rows size"]:
        """Return (x − mean)/spread, clipped to ±10."""
        return jnp.clip((x - self.mean) / self.spread, -CLIP, CLIP)

    @property
    def spread(self) -> Float[Array, " size"]:
        """Standard deviations, bounded away from zero."""
        return jnp.sqrt(self.square + EPSILON)

    def updated(self, x: Float[Array, "*rows size"], weight: Float[Array, "*rows"]) -> Self:
        """Return the normaliser updated with vectors; vectors of weight zero are ignored."""
        total = weight.sum()
        weight, axes = weight[..., None], tuple(range(x.ndim - 1))
        mean = (weight * x).sum(axes) / jnp.maximum(total, 1.0)
        square = (weight * (x - mean) ** 2).sum(axes) / jnp.maximum(total, 1.0)
        share = total / jnp.maximum(self.count + total, 1.0)
        gap = mean - self.mean
        return type(self)(
            self.mean + share * gap,
            (1 - share) * self.square + share * square + share * (1 - share) * gap**2,
            self.count + total,
        )


class Gaussian(eqx.Module):
    """Independent normal distributions."""

    mean: Float[Array, "*rows size"]
    log_std: Float[Array, "*rows size"]

    def draw(self, noise: Float[Array, "*rows size"]) -> Float[Array, "*rows size"]:
        """Return mean + σ·noise."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "*rows size"]:
        """Return the mean."""
        return self.mean

    def log_density(self, action: Float[Array, "*rows size"]) -> Float[Array, "*rows"]:
        """Return the log density of actions."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def divergence(self, other: Any) -> Float[Array, "*rows"]:
        """Return KL(self‖other) of each row."""
        ratio = jnp.exp(2 * (self.log_std - other.log_std))
        shift = ((self.mean - other.mean) * jnp.exp(-other.log_std)) ** 2
        return 0.5 * (ratio + shift - 1 - 2 * (self.log_std - other.log_std)).sum(-1)

    def metric(self, tangent: Gaussian) -> Gaussian:
        """Return the Fisher product: 1/σ² times the mean's tangent, 2 times that of log σ."""
        return Gaussian(tangent.mean * jnp.exp(-2 * self.log_std), 2 * tangent.log_std)


class Categorical(eqx.Module):
    """A distribution over whole numbers."""

    logits: Float[Array, "*rows count"]

    def draw(self, noise: Float[Array, "*rows count"]) -> Int[Array, "*rows"]:
        """Return argmax(logits + noise), with Gumbel noise."""
        return jnp.argmax(self.logits + noise, axis=-1)

    def mode(self) -> Int[Array, "*rows"]:
        """Return the most likely number."""
        return jnp.argmax(self.logits, axis=-1)

    def log_density(self, action: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Return the log density of actions."""
        logs = jax.nn.log_softmax(self.logits)
        return (logs * jax.nn.one_hot(action, logs.shape[-1])).sum(-1)

    def divergence(self, other: Any) -> Float[Array, "*rows"]:
        """Return KL(self‖other) of each row."""
        mine, theirs = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return (jnp.exp(mine) * (mine - theirs)).sum(-1)

    def metric(self, tangent: Categorical) -> Categorical:
        """Return the Fisher product (diag(p) − ppᵀ)·tangent."""
        p = jax.nn.softmax(self.logits)
        # Not p·(t − Σpt): under vmap over tangents, jaxlib 0.10.2 compiles that to wrong numbers on a
        # CPU, from some thousands of rows (jax-ml/jax#39103).
        weighted = p * tangent.logits
        return Categorical(weighted - p * weighted.sum(-1, keepdims=True))


Distribution = Gaussian | Categorical


class Policy(eqx.Module):
    """A network whose output is a distribution of actions.

    A vector action is drawn in units in which the action space is [−1, 1]. Its standard deviation does
    not depend on the state.
    """

    network: MLP
    log_std: Float[Array, " size"] | None
    space: Box | Discrete = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        key: PRNGKeyArray,
        inputs: int,
        hidden: tuple[int, ...],
        space: Box | Discrete,
        std: float = 1.0,
    ) -> Self:
        """Return a policy that acts almost alike in every state: its last layer is scaled by 0.01."""
        outputs = space.size if isinstance(space, Box) else space.count
        log_std = jnp.full(outputs, math.log(std)) if isinstance(space, Box) else None
        return cls(MLP.create(key, (inputs, *hidden, outputs), last_scale=0.01), log_std, space)

    def distribution(self, inputs: Float[Array, "*rows inputs"]) -> Distribution:
        """Return the distribution of actions, given normalised observations."""
        outputs = self.network(inputs)
        if self.log_std is None:
            return Categorical(outputs)
        return Gaussian(outputs, jnp.broadcast_to(self.log_std, outputs.shape))

    def act(
        self,
        inputs: Float[Array, "rows inputs"],
        key: PRNGKeyArray,
        time: Array,
        deterministic: bool | Bool[Array, "*rows"] = False,
    ) -> Array:
        """Return one action per row, in the policy's units: drawn with the key, or the most likely."""
        del time  # for policies with a memory
        distribution = self.distribution(inputs)
        drawn = distribution.draw(self.noise(key, len(inputs)))
        likely = jnp.asarray(deterministic)
        likely = likely.reshape(*likely.shape, *[1] * (drawn.ndim - likely.ndim))
        return jnp.where(likely, distribution.mode(), drawn)

    def noise(self, key: PRNGKeyArray, rows: int) -> Float[Array, "rows size"]:
        """Return noise for `draw`, one row for each action."""
        if isinstance(self.space, Box):
            return jax.random.normal(key, (rows, self.space.size))
        return jax.random.gumbel(key, (rows, self.space.count))

    def rebased(self, old: Normaliser, new: Normaliser) -> Self:
        """Return the same function of raw observations, for inputs of the new normaliser.

        The policy then changes by its trust-region steps only, and not when the normaliser learns.
        Clipped inputs, ten standard deviations away, are the exception.
        """
        was, now = old.spread, new.spread
        first, bias = self.network.weights[0], self.network.biases[0]
        network = MLP(
            (first * (now / was)[:, None], *self.network.weights[1:]),
            (bias + ((new.mean - old.mean) / was) @ first, *self.network.biases[1:]),
        )
        return type(self)(network, self.log_std, self.space)

    def to_environment(self, action: Array) -> Array:
        """Return an action in the environment's units."""
        if isinstance(self.space, Discrete) or not self.space.is_bounded:
            return action
        low, high = jnp.asarray(self.space.low), jnp.asarray(self.space.high)
        return (low + high) / 2 + (high - low) / 2 * action


class Critic(eqx.Module):
    """The value of one signal under its own kernel, as a function of the features and the clock.

    The network's output is in units of the mean and spread of the returns seen so far.
    """

    network: MLP
    returns: Normaliser

    @classmethod
    def create(cls, key: PRNGKeyArray, inputs: int, hidden: tuple[int, ...]) -> Self:
        """Return a critic whose values are almost zero everywhere."""
        network = MLP.create(key, (inputs, *hidden, 1), last_scale=0.01)
        return cls(network, Normaliser.create(1))

    def __call__(self, inputs: Float[Array, "*rows inputs"]) -> Float[Array, "*rows"]:
        """Return the values."""
        mean, std = self.returns.mean[0], jnp.sqrt(self.returns.square[0])
        return mean + std * self.network(inputs)[..., 0]

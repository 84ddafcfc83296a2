"""Point Gather: collect two apples among eight bombs, as pure JAX."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.arguments import check_choice
from holdfast._support.fields import constant, horizon_field, parameter, plain_or_traced
from holdfast.environments import gathering
from holdfast.environments.gathering import APPLES, ARENA, BINS, MASS_AHEAD, OBJECTS
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step

# Height of the centre of mass, a constant of the observation, and limits of (distance, turn).
MASS_HEIGHT = 0.5
ACTION_LIMITS = (1.0, 0.25)

_PARAMETERS = ("speed", "turn", "catch_distance", "noise_scale", "sensor_range")


class PointGatherState(NamedTuple):
    """Positions of the point and of the objects: first the two apples, then the eight bombs.

    Attributes:
        pose: x, y and heading θ.
        velocity: drawn at the start and never used: three numbers of noise in the observation.
        objects: x and y of each object.
        present: whether each object is still there.
        clock: number of steps taken; None unless the environment shows the clock.
    """

    pose: Float[Array, "3"]
    velocity: Float[Array, "3"]
    objects: Float[Array, "10 2"]
    present: Bool[Array, "10"]
    clock: Int[Array, ""] | None


class PointGather(Environment):
    """A point that drives through a square, collects apples and should avoid bombs.

    *Motion.* With action (a₀, a₁) the heading turns, θ += a₁, and then the point moves along it,
    (x, y) += a₀·(cos θ, sin θ). x and y are clipped to ±6. No velocity is kept.

    *Signals.* Two apples and eight bombs lie on distinct cells of {−6, −4, …, 4}² without the origin.
    An object is caught, and vanishes, when it is less than 1 away from the centre of mass, which lies
    0.042583 ahead of (x, y). An apple pays 10; a bomb pays −1, and a step in which any bomb is caught
    costs 1. The episode ends when nothing is left, or is cut after `horizon` steps.

    *Observation*, 29 numbers: pose (3), velocity (3, constant noise), centre of mass (3), sensors for
    apples (10) and bombs (10); with `clock` also the elapsed share of the horizon. The sensors divide
    the half plane ahead, from right to left, into ten sectors. Each reads 1 − distance/6 of the nearest
    object in it, and 0 if none is within 6.

    *Disturbance.* Under "state" a disturbance (w₁, w₂, w₃) is part of the move: first
    θ += a₁ + 0.15·w₃, then x += a₀·cos θ + 0.15·w₁ with the new θ, and y likewise, then the clipping to
    ±6. Catching and sensing happen at the final position. Under "action" a disturbance (w₁, w₂) changes
    the action to a + 0.15·w, which is then clipped, so near a limit it has less effect.

    From the CPO paper and its code, the task that the RCPO paper uses: motion, objects, signals,
    sensors, horizon, the cost limit 0.1 and the discount. Ours: both disturbances with their scale,
    because the original has no noise; clipped actions, which the original does not enforce; the clock.

    Arguments:
        channel: where the disturbance enters, "state" or "action".
        clip_actions: whether actions are clipped to [−1, 1] × [−0.25, 0.25].
        horizon: number of steps in an episode.
        clock: whether the policy sees the elapsed share of the horizon.
        speed: factor on a₀. `with_parameters` can change this and the following arguments.
        turn: factor on a₁.
        catch_distance: distance within which objects are caught.
        noise_scale: standard deviation of the disturbance.
        sensor_range: distance beyond which objects are not seen.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> import holdfast as hf
        >>> env = hf.environments.PointGather()
        >>> state, observation = eqx.filter_jit(env.reset)(jax.random.key(0))
        >>> env.observation_size, env.feature_size
        (29, 44)
        >>> step = eqx.filter_jit(env.step)(state, jnp.array([1.0, 0.0]), jnp.zeros(3))
        >>> float(step.reward), step.costs.tolist(), bool(step.terminated)
        (0.0, [0.0], False)
        >>> env.with_parameters(speed=0.5).parameters["speed"]
        0.5

    Reference:
        Achiam, Held, Tamar and Abbeel, Constrained Policy Optimization (ICML 2017); the task without
        a cost is from Duan, Chen, Houthooft, Schulman and Abbeel, Benchmarking Deep Reinforcement
        Learning for Continuous Control (ICML 2016).
    """

    channel: Literal["state", "action"] = constant("state")
    clip_actions: bool = constant(True, bool)
    horizon: int = horizon_field(15)
    clock: bool = constant(False, bool)
    speed: Float[Array, ""] = parameter(1.0)
    turn: Float[Array, ""] = parameter(1.0)
    catch_distance: Float[Array, ""] = parameter(1.0)
    noise_scale: Float[Array, ""] = parameter(0.15)
    sensor_range: Float[Array, ""] = parameter(6.0)

    name = "point-gather"
    cost_names = ("bombs",)
    cost_limits = (0.1,)
    discount = 0.995

    def __check_init__(self) -> None:
        check_choice("channel", self.channel, ("state", "action"))

    @property
    def signal_ranges(self) -> tuple[tuple[float, float], ...]:
        """All bombs or all apples caught in one step; a step costs at most 1."""
        return (-float(OBJECTS - APPLES), 10.0 * APPLES), (0.0, 1.0)

    @property
    def observation_size(self) -> int:
        """29, or 30 with a clock."""
        return 9 + 2 * BINS + self.clock

    @property
    def feature_size(self) -> int:
        """Four numbers for the pose and four for each object."""
        return 4 + 4 * OBJECTS

    @property
    def nature_feature_size(self) -> int:
        """The features and the action."""
        return self.feature_size + self.action_space.size

    @property
    def action_space(self) -> Box:
        """Distance and turn; unbounded if actions are not clipped."""
        high = ACTION_LIMITS if self.clip_actions else (float("inf"), float("inf"))
        return Box(low=(-high[0], -high[1]), high=high)

    @property
    def disturbance(self) -> GaussianNoise:
        """Noise on (x, y, θ) or on the action, with the same scale for each."""
        size = 3 if self.channel == "state" else 2
        return GaussianNoise(size, self.channel, (plain_or_traced(self.noise_scale),) * size)

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters that `with_parameters` can change."""
        return {name: plain_or_traced(getattr(self, name)) for name in _PARAMETERS}

    def description(self) -> dict[str, Any]:
        """Return everything that defines it as JSON values."""
        options = {n: getattr(self, n) for n in ("channel", "clip_actions", "horizon", "clock")}
        return {**super().description(), "options": {**options, **self.parameters}}

    def reset(self, key: PRNGKeyArray) -> tuple[PointGatherState, Float[Array, " observation"]]:
        """Return the point near the origin and the objects on distinct cells."""
        # One draw for everything: a generator mapped over thousands of keys compiles slowly.
        bits = jax.random.bits(key, (6 + OBJECTS,), jnp.uint32)
        body = gathering.normal_from(bits[:6])
        state = PointGatherState(
            pose=0.01 * body[:3],
            velocity=0.1 * body[3:],
            objects=gathering.cell_positions(gathering.distinct_cells(bits[6:])),
            present=jnp.ones(OBJECTS, bool),
            clock=jnp.zeros((), jnp.int32) if self.clock else None,
        )
        return state, self.observe(state)

    def step(
        self,
        state: PointGatherState,
        action: Float[Array, "2"],
        disturbance: Float[Array, " disturbance"],
    ) -> Step:
        """Turn, move, and catch the objects that are then within reach."""
        pose = self._move(state.pose, action, disturbance)
        ahead, left = gathering.in_body_frame(pose, state.objects)
        within_reach = ahead**2 + left**2 < self.catch_distance**2
        caught = state.present & within_reach
        present = state.present & ~within_reach
        apples = caught[:APPLES].sum(dtype=jnp.float32)
        bombs = caught[APPLES:].sum(dtype=jnp.float32)
        clock = None if state.clock is None else state.clock + 1
        new_state = PointGatherState(pose, state.velocity, state.objects, present, clock)
        return Step(
            state=new_state,
            observation=self.observe(new_state),
            reward=10 * apples - bombs,
            costs=jnp.minimum(bombs, 1.0)[None],
            terminated=~present.any(),
        )

    def _move(
        self,
        pose: Float[Array, "3"],
        action: Float[Array, "2"],
        disturbance: Float[Array, " disturbance"],
    ) -> Float[Array, "3"]:
        x, y, heading = pose
        push = self.noise_scale * disturbance
        if self.channel == "action":
            action, push = action + push, jnp.zeros(3, jnp.float32)
        action = self._enforced(action)
        heading = heading + self.turn * action[1] + push[2]
        distance = self.speed * action[0]
        x = jnp.clip(x + distance * jnp.cos(heading) + push[0], -ARENA, ARENA)
        y = jnp.clip(y + distance * jnp.sin(heading) + push[1], -ARENA, ARENA)
        return jnp.stack([x, y, heading])

    def _enforced(self, action: Float[Array, "2"]) -> Float[Array, "2"]:
        limits = np.array(ACTION_LIMITS, np.float32)
        return jnp.clip(action, -limits, limits) if self.clip_actions else action

    def observe(self, state: PointGatherState) -> Float[Array, " observation"]:
        """Return the policy's observation of a state."""
        x, y, heading = state.pose
        mass_x, mass_y = x + MASS_AHEAD * jnp.cos(heading), y + MASS_AHEAD * jnp.sin(heading)
        centre_of_mass = jnp.stack([mass_x, mass_y, jnp.full((), MASS_HEIGHT, jnp.float32)])
        ahead, left = gathering.in_body_frame(state.pose, state.objects)
        readings = gathering.sensors(ahead, left, state.present, self.sensor_range)
        parts = [state.pose, state.velocity, centre_of_mass, readings]
        if state.clock is not None:
            parts.append((state.clock / self.horizon).astype(jnp.float32)[None])
        return jnp.concatenate(parts)

    def features(self, state: PointGatherState) -> Float[Array, " features"]:
        """Return everything on which the future depends, which is the state without `velocity`.

        First x/6, y/6, cos θ and sin θ. Then four numbers for each object, apples before bombs, each
        kind sorted by distance with caught objects last:

        - its position ahead of and to the left of the centre of mass, with the distance d mapped to
          tanh(d/2): the direction is kept, and near objects are well resolved;
        - tanh(d − catch distance): negative within reach, and changed by up to 0.1 by a push of 0.1;
        - 1 if it is still there. A caught object reads (0, 0, 1, 0).
        """
        return self._features(state, *gathering.in_body_frame(state.pose, state.objects))

    def nature_features(
        self, state: PointGatherState, action: Float[Array, "2"]
    ) -> Float[Array, " nature"]:
        """Return the features after the undisturbed step, before anything is caught, and the action.

        The number tanh(d − catch distance) then shows for every object on which side of the catch
        distance the step ends, and how far from it. Objects are shown in the frame in which nature
        pushes: x and y if it pushes the state, the body's frame if it pushes the action. Together with
        the action this determines the state and the action, except for how far a wall cut the step.
        """
        undisturbed = jnp.zeros(self.disturbance.size, jnp.float32)
        there = state._replace(pose=self._move(state.pose, action, undisturbed))
        ahead, left = gathering.in_body_frame(there.pose, there.objects)
        if self.channel == "action":
            return jnp.concatenate([self._features(there, ahead, left), action])
        cos, sin = jnp.cos(there.pose[2]), jnp.sin(there.pose[2])
        seen = self._features(there, cos * ahead - sin * left, sin * ahead + cos * left)
        return jnp.concatenate([seen, self._enforced(action)])

    def _features(
        self, state: PointGatherState, first: Float[Array, "10"], second: Float[Array, "10"]
    ) -> Float[Array, " features"]:
        """Return the features, with objects at (first, second) from the centre of mass in some frame."""
        x, y, heading = state.pose
        pose = jnp.stack([x / ARENA, y / ARENA, jnp.cos(heading), jnp.sin(heading)])
        objects = gathering.object_features(first, second, state.present, self.catch_distance)
        return jnp.concatenate([pose, objects])

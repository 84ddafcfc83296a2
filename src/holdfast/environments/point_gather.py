"""Point Gather: collect two apples among eight bombs, as pure JAX."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.arguments import check_whole_number
from holdfast.environments.gathering import (
    APPLES,
    ARENA,
    BINS,
    MASS_AHEAD,
    OBJECTS,
    cell_positions,
    distinct_cells,
    in_body_frame,
    normal_from,
    sensors,
    sorted_rows,
)
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step

MASS_HEIGHT = 0.5
ACTION_LIMITS = (1.0, 0.25)

_PARAMETERS = ("speed", "turn", "catch_distance", "noise_scale", "sensor_range")


class PointGatherState(NamedTuple):
    """Where everything is. The first two objects are the apples, the other eight the bombs.

    Attributes:
        pose: x, y and heading θ.
        velocity: drawn at the start and never used: three numbers of noise in the observation.
        objects: x and y of each object.
        present: whether it is still there.
        clock: steps taken; kept only where the environment was asked to show it.
    """

    pose: Float[Array, "3"]
    velocity: Float[Array, "3"]
    objects: Float[Array, "10 2"]
    present: Bool[Array, "10"]
    clock: Int[Array, ""] | None


class PointGather(Environment):
    """A point that drives through a square, collects apples and should leave the bombs alone.

    *Motion.* With action (a₀, a₁) the heading turns, θ += a₁, and then the point moves along it,
    (x, y) += a₀·(cos θ, sin θ); x and y are cut to ±6. No velocity is kept.

    *Signals.* Two apples and eight bombs lie on distinct cells of {−6, −4, …, 4}² without the origin.
    An object is caught, and vanishes, when it is less than 1 away from the centre of mass, which lies
    0.042583 ahead of (x, y). An apple pays 10; a bomb pays −1, and a step in which any bomb is caught
    costs 1. The episode ends when nothing is left, or is cut after `horizon` steps.

    *Observation*, 29 numbers: pose (3), velocity (3, constant noise), centre of mass (3), sensors for
    apples (10) and bombs (10), and the share of the horizon that has passed if `clock`. The sensors
    part the half plane ahead, from right to left, into ten sectors; each reads 1 − distance/6 of the
    nearest object in it, and 0 without one within 6.

    *Disturbance.* The original has no noise in its steps, so these two are ours. Under "state" a
    disturbance (w₁, w₂, w₃) is part of the move: θ += a₁ + 0.15·w₃ first, then
    x += a₀·cos θ + 0.15·w₁ with the new θ, and y likewise, then the cut to ±6; catching and sensing
    happen where that ends. Under "action" a disturbance (w₁, w₂) makes the action a + 0.15·w, which
    is then clipped: near a limit the clipping takes some of it away.

    Arguments:
        channel: where the disturbance enters, "state" or "action".
        clip_actions: whether actions are cut to [−1, 1] × [−0.25, 0.25]; the original never does.
        horizon: steps in an episode.
        clock: whether the policy sees how much of the horizon has passed; the original's does not.
        speed: factor on a₀. This and the following are what `with_parameters` can change.
        turn: factor on a₁.
        catch_distance: within which objects are caught.
        noise_scale: standard deviation of the disturbance.
        sensor_range: beyond which objects are unseen.

    Example:
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from holdfast.environments.point_gather import PointGather
        >>> env = PointGather()
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

    speed: Float[Array, ""]
    turn: Float[Array, ""]
    catch_distance: Float[Array, ""]
    noise_scale: Float[Array, ""]
    sensor_range: Float[Array, ""]
    channel: Literal["state", "action"] = eqx.field(static=True)
    clip_actions: bool = eqx.field(static=True)
    clock: bool = eqx.field(static=True)
    _horizon: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        channel: Literal["state", "action"] = "state",
        clip_actions: bool = True,
        horizon: int = 15,
        clock: bool = False,
        speed: float = 1.0,
        turn: float = 1.0,
        catch_distance: float = 1.0,
        noise_scale: float = 0.15,
        sensor_range: float = 6.0,
    ) -> None:
        if channel not in ("state", "action"):
            raise ValueError(f"channel: expected 'state' or 'action', got {channel!r}")
        check_whole_number("horizon", horizon, least=1)
        self.channel = channel
        self.clip_actions = bool(clip_actions)
        self.clock = bool(clock)
        self._horizon = int(horizon)
        self.speed = jnp.asarray(speed, jnp.float32)
        self.turn = jnp.asarray(turn, jnp.float32)
        self.catch_distance = jnp.asarray(catch_distance, jnp.float32)
        self.noise_scale = jnp.asarray(noise_scale, jnp.float32)
        self.sensor_range = jnp.asarray(sensor_range, jnp.float32)

    @property
    def name(self) -> str:
        """What runs and messages call it."""
        return "point-gather"

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut."""
        return self._horizon

    @property
    def observation_size(self) -> int:
        """29, and one more with a clock."""
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
        """Distance and turn; without bounds where they are not enforced."""
        high = ACTION_LIMITS if self.clip_actions else (float("inf"), float("inf"))
        return Box(low=(-high[0], -high[1]), high=high)

    @property
    def disturbance(self) -> GaussianNoise:
        """Noise on (x, y, θ) or on the action, by the same scale on each."""
        size = 3 if self.channel == "state" else 2
        return GaussianNoise(size, self.channel, (_number(self.noise_scale),) * size)

    @property
    def cost_names(self) -> tuple[str, ...]:
        """One cost: whether a bomb was caught."""
        return ("bombs",)

    @property
    def cost_limits(self) -> tuple[float, ...]:
        """0.1 bombs an episode."""
        return (0.1,)

    @property
    def discount(self) -> float:
        """The published discount."""
        return 0.995

    @property
    def parameters(self) -> dict[str, float]:
        """The physics that `with_parameters` can change."""
        return {name: _number(getattr(self, name)) for name in _PARAMETERS}

    def description(self) -> dict[str, Any]:
        """All that defines it, as values that JSON can hold."""
        options = {
            "channel": self.channel,
            "clip_actions": self.clip_actions,
            "horizon": self.horizon,
            "clock": self.clock,
        }
        return {**super().description(), "options": {**options, **self.parameters}}

    def reset(self, key: PRNGKeyArray) -> tuple[PointGatherState, Float[Array, " observation"]]:
        """The point near the origin, and the objects on distinct cells."""
        # One draw for all: a generator mapped over thousands of keys is slow to compile.
        bits = jax.random.bits(key, (6 + OBJECTS,), jnp.uint32)
        body = normal_from(bits[:6])
        state = PointGatherState(
            pose=0.01 * body[:3],
            velocity=0.1 * body[3:],
            objects=cell_positions(distinct_cells(bits[6:])),
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
        """Turns, moves, and catches what is then within reach."""
        pose = self._move(state.pose, action, disturbance)
        ahead, left = in_body_frame(pose, state.objects)
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
        """What the policy sees of a state."""
        x, y, heading = state.pose
        mass_x, mass_y = x + MASS_AHEAD * jnp.cos(heading), y + MASS_AHEAD * jnp.sin(heading)
        centre_of_mass = jnp.stack([mass_x, mass_y, jnp.full((), MASS_HEIGHT, jnp.float32)])
        ahead, left = in_body_frame(state.pose, state.objects)
        readings = sensors(ahead, left, state.present, self.sensor_range)
        parts = [state.pose, state.velocity, centre_of_mass, readings]
        if state.clock is not None:
            parts.append((state.clock / self.horizon).astype(jnp.float32)[None])
        return jnp.concatenate(parts)

    def features(self, state: PointGatherState) -> Float[Array, " features"]:
        """All that the future depends on; `velocity` is left out, since nothing depends on it.

        First x/6, y/6, cos θ and sin θ. Then four numbers for each object, apples before bombs and
        within its kind the nearest first, those already caught last:

        - where it is in the body's frame, ahead and to the left, with the distance d from the centre
          of mass turned into tanh(d/2): directions stay, and what is near is well resolved;
        - tanh(d − catch distance): negative is caught, and a push of 0.1 changes it by up to 0.1;
        - 1 if it is still there. A caught one reads (0, 0, 1, 0).
        """
        return self._features(state, *in_body_frame(state.pose, state.objects))

    def nature_features(
        self, state: PointGatherState, action: Float[Array, "2"]
    ) -> Float[Array, " nature"]:
        """The features of where the step would lead undisturbed, before anything is caught there.

        So the number tanh(d − catch distance) says of every object which side of being caught it is
        on, and by how much: what a push can change. Objects are shown in the frame in which nature
        pushes: that of x and y where it pushes the state, the body's where it pushes the action. The
        action follows, as far as it has an effect; with it this is as much as the state and the action,
        but for how far a wall cut the step.
        """
        undisturbed = jnp.zeros(self.disturbance.size, jnp.float32)
        there = state._replace(pose=self._move(state.pose, action, undisturbed))
        ahead, left = in_body_frame(there.pose, there.objects)
        if self.channel == "action":
            return jnp.concatenate([self._features(there, ahead, left), action])
        cos, sin = jnp.cos(there.pose[2]), jnp.sin(there.pose[2])
        seen = self._features(there, cos * ahead - sin * left, sin * ahead + cos * left)
        return jnp.concatenate([seen, self._enforced(action)])

    def _features(
        self, state: PointGatherState, first: Float[Array, "10"], second: Float[Array, "10"]
    ) -> Float[Array, " features"]:
        """Pose and objects, which lie at (first, second) from the centre of mass, in some frame."""
        x, y, heading = state.pose
        pose = jnp.stack([x / ARENA, y / ARENA, jnp.cos(heading), jnp.sin(heading)])
        # Not below a tiny number, so that the direction to an object underfoot is no 0/0.
        distance = jnp.sqrt(jnp.maximum(first**2 + second**2, 1e-12))
        squash = jnp.where(state.present, jnp.tanh(distance / 2) / distance, 0.0)
        clearance = jnp.where(state.present, jnp.tanh(distance - self.catch_distance), 1.0)
        objects = jnp.stack(
            [squash * first, squash * second, clearance, state.present.astype(jnp.float32)], axis=1
        )
        order = jnp.where(state.present, distance, jnp.inf)
        apples = sorted_rows(order[:APPLES], objects[:APPLES])
        bombs = sorted_rows(order[APPLES:], objects[APPLES:])
        return jnp.concatenate([pose, apples.reshape(-1), bombs.reshape(-1)])


def _number(leaf: Array) -> Any:
    """A plain number; inside a trace there is none yet, and the leaf itself has to do."""
    return leaf if isinstance(leaf, jax.core.Tracer) else float(leaf)

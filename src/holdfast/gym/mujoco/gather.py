"""Ant Gather: collect two apples among eight bombs, on four legs."""

from __future__ import annotations

import mujoco
import numpy as np
from jaxtyping import Bool, Float

from holdfast._support.arguments import check_whole_number
from holdfast.environments import gathering
from holdfast.environments.gathering import APPLES, ARENA, BINS, CELLS, OBJECTS
from holdfast.gym.mujoco import models
from holdfast.gym.mujoco.circle import FALL_REWARD, ant_start, has_fallen
from holdfast.gym.mujoco.task import InitialState, RobotState, RobotTask, Rows, TaskOutcome

CATCH_DISTANCE = 1.0
SENSOR_RANGE = 6.0
# {−6, −4, …, 4}² without the origin.
_SIDE = np.arange(-ARENA, ARENA, 2.0)
_PLACES = np.array([(x, y) for x in _SIDE for y in _SIDE if x or y])
assert len(_PLACES) == CELLS


class AntGather(RobotTask):
    """Point Gather's apples and bombs for Gymnasium's Ant.

    *Signals.* The ant catches an object, which vanishes, when its torso is less than 1 m away. An
    apple has reward 10, a bomb −1, and a step in which any bomb is caught has cost 1. The episode ends
    when nothing is left, or when the torso leaves 0.2 ≤ z ≤ 1.0; that step has reward −10. A step is
    0.05 s, an episode 500 steps.

    *Arena.* Walls stand at ±7, beyond the ±6 of Point Gather by the reach of the legs, so that the torso
    gets about as far as the point does.

    *Observation*, 49 numbers: all positions (15) and velocities (14), sensors for apples (10) and for
    bombs (10), which look ahead of the torso as the point's do. Distances are measured from the middle
    of the torso; in the original, from the centre of mass.

    *Memory*, 30 numbers: x and y of the objects, two apples first, then whether each is still there.

    The task, the reward of a fall and the range of heights are the CPO paper's. The cost limit is
    ours: half a bomb per episode.

    Arguments:
        horizon: number of steps of an episode.

    Example:
        >>> task = AntGather()
        >>> task.name, task.observation_size, task.memory_size
        ('ant-gather', 49, 30)

    Reference:
        Achiam, Held, Tamar and Abbeel, Constrained Policy Optimization (ICML 2017).
    """

    name = "ant-gather"
    frame_skip = 5
    memory_size = 3 * OBJECTS
    cost_names = ("bombs",)
    cost_limits = (0.5,)
    discount = 0.995

    def __init__(self, *, horizon: int = 500) -> None:
        check_whole_number("horizon", horizon, least=1)
        self.horizon = horizon
        self.model = models.ant(walls=True).compile()
        self.observation_size = self.model.nq + self.model.nv + 2 * BINS

    @property
    def feature_size(self) -> int:
        """Length of positions, velocities and four numbers for each object."""
        return self.model.nq + self.model.nv + 4 * OBJECTS

    def reset(self, generator: np.random.Generator) -> InitialState:
        """Return an ant near the origin, and the objects on distinct cells."""
        qpos, qvel = ant_start(self.model, generator)
        cells = generator.choice(CELLS, OBJECTS, replace=False)
        return InitialState(qpos, qvel, np.concatenate([_PLACES[cells].ravel(), np.ones(OBJECTS)]))

    def observe(self, now: RobotState, memory: Rows) -> Rows:
        """Return positions, velocities and sensor readings."""
        ahead, left = _in_torso_frame(now, memory)
        readings = gathering.sensors(ahead, left, _present(memory), SENSOR_RANGE, np)
        return np.concatenate([now.qpos, now.qvel, readings], axis=1)

    def outcome(
        self, before: RobotState, after: RobotState, actions: Rows, memory: Rows
    ) -> TaskOutcome:
        """Return the outcome of catching the objects within reach after the step."""
        del before, actions
        ahead, left = _in_torso_frame(after, memory)
        present = _present(memory)
        caught = present & (ahead**2 + left**2 < CATCH_DISTANCE**2)
        present = present & ~caught
        apples, bombs = caught[:, :APPLES].sum(axis=1), caught[:, APPLES:].sum(axis=1)
        fallen = has_fallen(after)
        return TaskOutcome(
            reward=np.where(fallen, FALL_REWARD, 10.0 * apples - bombs),
            costs=np.minimum(bombs, 1).astype(float)[:, None],
            terminated=fallen | ~present.any(axis=1),
            memory=np.concatenate([memory[:, : 2 * OBJECTS], present.astype(float)], axis=1),
            info={"apples": apples.astype(float), "bombs": bombs.astype(float)},
        )

    def features(self, now: RobotState, memory: Rows) -> Rows:
        """Return positions and velocities, then four numbers for each object, as in Point Gather."""
        ahead, left = _in_torso_frame(now, memory)
        objects = gathering.object_features(ahead, left, _present(memory), CATCH_DISTANCE, np)
        return np.concatenate([now.qpos, now.qvel, objects], axis=1)

    def drawn_model(self) -> mujoco.MjModel:
        """Return a model with the ant, the walls and the objects."""
        return models.drawn_gather(models.ant(walls=True))

    def objects(
        self, memory: Float[np.ndarray, " memory"]
    ) -> tuple[Float[np.ndarray, "objects 2"], Bool[np.ndarray, " objects"]]:
        """Return the places of the objects, and whether each is still there."""
        return memory[: 2 * OBJECTS].reshape(OBJECTS, 2), memory[2 * OBJECTS :] > 0


def _present(memory: Rows) -> Bool[np.ndarray, "rows 10"]:
    return memory[:, 2 * OBJECTS :] > 0


def _in_torso_frame(now: RobotState, memory: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances of each object ahead of the torso and to its left, on the floor."""
    w, x, y, z = now.qpos[:, 3:7].T
    heading = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2))[:, None]
    cosine, sine = np.cos(heading), np.sin(heading)
    objects = memory[:, : 2 * OBJECTS].reshape(-1, OBJECTS, 2)
    east, north = np.moveaxis(objects - now.qpos[:, None, :2], 2, 0)
    return cosine * east + sine * north, cosine * north - sine * east

"""Point Gather and a PCPO loop in plain NumPy: the peer of `deep_training.py`.

The code is vectorised over the episodes of a batch, so that nearly all time is spent in NumPy's loops
and in BLAS. It computes in single precision, with Holdfast's settings and hand-written derivatives.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

HORIZON, APPLES, OBJECTS, BINS = 15, 2, 10, 10
ARENA, AHEAD, RANGE, NOISE = 6.0, 0.042583, 6.0, 0.15
f32 = np.float32


# --- Point Gather -------------------------------------------------------------------------------------


class State(NamedTuple):
    pose: np.ndarray  # (episodes, 3): x, y, θ
    velocity: np.ndarray  # (episodes, 3)
    objects: np.ndarray  # (episodes, 10, 2), apples first
    present: np.ndarray  # (episodes, 10)


def reset(rng: np.random.Generator, episodes: int) -> State:
    cells = rng.random((episodes, 35), f32).argpartition(OBJECTS, axis=1)[:, :OBJECTS]
    cells = rng.permuted(cells, axis=1)
    cells = cells + (cells >= 21)  # without the origin
    objects = 2 * np.stack([cells // 6, cells % 6], axis=-1).astype(f32) - f32(ARENA)
    pose = f32(0.01) * rng.standard_normal((episodes, 3), f32)
    velocity = f32(0.1) * rng.standard_normal((episodes, 3), f32)
    return State(pose, velocity, objects, np.ones((episodes, OBJECTS), bool))


def in_body_frame(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of each object ahead of the centre of mass, and to its left."""
    east = state.objects[..., 0] - state.pose[:, :1]
    north = state.objects[..., 1] - state.pose[:, 1:2]
    cos, sin = np.cos(state.pose[:, 2:]), np.sin(state.pose[:, 2:])
    return cos * east + sin * north - f32(AHEAD), cos * north - sin * east


def step(
    state: State, action: np.ndarray, noise: np.ndarray
) -> tuple[State, np.ndarray, np.ndarray, np.ndarray]:
    """Return the next states, the rewards, the costs, and whether no object is left."""
    limits = np.array([1.0, 0.25], f32)
    action, push = np.clip(action, -limits, limits), f32(NOISE) * noise
    heading = state.pose[:, 2] + action[:, 1] + push[:, 2]
    x = np.clip(state.pose[:, 0] + action[:, 0] * np.cos(heading) + push[:, 0], -ARENA, ARENA)
    y = np.clip(state.pose[:, 1] + action[:, 0] * np.sin(heading) + push[:, 1], -ARENA, ARENA)
    moved = state._replace(pose=np.stack([x, y, heading], axis=1))
    ahead, left = in_body_frame(moved)
    near = ahead**2 + left**2 < 1
    caught, present = state.present & near, state.present & ~near
    bombs = caught[:, APPLES:].sum(1, dtype=f32)
    reward = 10 * caught[:, :APPLES].sum(1, dtype=f32) - bombs
    return moved._replace(present=present), reward, np.minimum(bombs, f32(1)), ~present.any(1)


def observe(state: State) -> np.ndarray:
    """Return the observations, (episodes, 29)."""
    ahead, left = in_body_frame(state)
    distance = np.sqrt(ahead**2 + left**2)
    seen = state.present & (ahead >= 0) & (distance <= RANGE)
    rows, columns = np.nonzero(seen)
    angle = np.arctan2(left[rows, columns], ahead[rows, columns])
    sector = np.clip(((angle + np.pi / 2) / (np.pi / BINS)).astype(int), 0, BINS - 1)
    readings = np.zeros((len(ahead), 2 * BINS), f32)
    place = sector + BINS * (columns >= APPLES)
    np.maximum.at(readings, (rows, place), 1 - distance[rows, columns] / f32(RANGE))
    x, y, heading = state.pose.T
    mass = [
        x + f32(AHEAD) * np.cos(heading),
        y + f32(AHEAD) * np.sin(heading),
        np.full_like(x, 0.5),
    ]
    return np.concatenate([state.pose, state.velocity, np.stack(mass, axis=1), readings], axis=1)


def features(state: State) -> np.ndarray:
    """Return the whole state, (episodes, 44), with each kind of object sorted by distance."""
    ahead, left = in_body_frame(state)
    distance = np.sqrt(np.maximum(ahead**2 + left**2, f32(1e-12)))
    here = state.present.astype(f32)
    squash = here * np.tanh(distance / 2) / distance
    clearance = np.where(state.present, np.tanh(distance - 1), f32(1))
    objects = np.stack([squash * ahead, squash * left, clearance, here], axis=-1)
    far = np.where(state.present, distance, f32(np.inf))
    order = np.concatenate(
        [
            far[:, :APPLES].argsort(axis=1, kind="stable"),
            APPLES + far[:, APPLES:].argsort(axis=1, kind="stable"),
        ],
        axis=1,
    )
    objects = np.take_along_axis(objects, order[..., None], axis=1)
    x, y, heading = state.pose.T
    pose = np.stack([x / f32(ARENA), y / f32(ARENA), np.cos(heading), np.sin(heading)], axis=1)
    return np.concatenate([pose, objects.reshape(len(x), -1)], axis=1)


# --- Networks -----------------------------------------------------------------------------------------


class MLP:
    """tanh layers on rows, with forward and backward derivatives. Parameters: weights, then biases."""

    def __init__(self, weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
        self.weights, self.biases = weights, biases

    @classmethod
    def create(cls, rng: np.random.Generator, sizes: tuple[int, ...], last_scale: float) -> MLP:
        weights = [
            rng.standard_normal((i, o), f32) / f32(np.sqrt(i)) for i, o in itertools.pairwise(sizes)
        ]
        weights[-1] *= f32(last_scale)
        return cls(weights, [np.zeros(o, f32) for o in sizes[1:]])

    def layers(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the input, every hidden layer and the output."""
        values = [x]
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ w
            x += b
            values.append(np.tanh(x, out=x))
        return [*values, x @ self.weights[-1] + self.biases[-1]]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.layers(x)[-1]

    def backward(self, values: list[np.ndarray], slope: np.ndarray) -> list[np.ndarray]:
        """Return the gradient of Σ slope·output."""
        weights, biases = [], []
        for i in reversed(range(len(self.weights))):
            weights.append(values[i].T @ slope)
            biases.append(slope.sum(0))
            if i:
                slope = slope @ self.weights[i].T
                slope *= 1 - values[i] ** 2
        return weights[::-1] + biases[::-1]

    def forward(self, values: list[np.ndarray], change: list[np.ndarray]) -> np.ndarray:
        """Return the Jacobian of the output in the parameters times a vector."""
        count = len(self.weights)
        tangent = values[0] @ change[0] + change[count]
        for i in range(1, count):
            tangent *= 1 - values[i] ** 2
            tangent = tangent @ self.weights[i] + values[i] @ change[i] + change[count + i]
        return tangent


def flat(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([leaf.ravel() for leaf in leaves])


def like(leaves: list[np.ndarray], vector: np.ndarray) -> list[np.ndarray]:
    parts = np.split(vector, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]


class Normaliser:
    def __init__(self, size: int) -> None:
        self.mean, self.square, self.count = np.zeros(size, f32), np.ones(size, f32), 0.0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.clip((x - self.mean) / np.sqrt(self.square + f32(1e-6)), -10, 10)

    def update(self, x: np.ndarray) -> None:
        mean, square = x.mean(0), x.var(0)
        share, gap = f32(len(x) / (self.count + len(x))), mean - self.mean
        self.mean = self.mean + share * gap
        self.square = (1 - share) * self.square + share * square + share * (1 - share) * gap**2
        self.count += len(x)


class Policy:
    """Normal actions, scaled so that the box is [−1, 1]. Parameters: the network's, then log σ."""

    def __init__(self, network: MLP, log_std: np.ndarray) -> None:
        self.network, self.log_std = network, log_std

    @property
    def leaves(self) -> list[np.ndarray]:
        return [*self.network.weights, *self.network.biases, self.log_std]

    def with_parameters(self, vector: np.ndarray) -> Policy:
        *leaves, log_std = like(self.leaves, vector)
        count = len(self.network.weights)
        return Policy(MLP(leaves[:count], leaves[count:]), log_std)

    def rebase(self, stretch: np.ndarray, shift: np.ndarray) -> None:
        """Keep the function of raw observations unchanged after the normaliser has moved."""
        first = self.network.weights[0]
        self.network.biases[0] = self.network.biases[0] + shift @ first
        self.network.weights[0] = first * stretch[:, None]

    def log_density(self, mean: np.ndarray, action: np.ndarray) -> np.ndarray:
        z = (action - mean) * np.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - f32(0.5 * np.log(2 * np.pi))).sum(-1)


class Critic:
    def __init__(self, network: MLP, rate: float) -> None:
        self.network, self.returns, self.rate = network, Normaliser(1), f32(rate)
        self.first = [np.zeros_like(p) for p in network.weights + network.biases]
        self.second = [np.zeros_like(p) for p in network.weights + network.biases]
        self.updates = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.returns.mean[0] + np.sqrt(self.returns.square[0]) * self.network(x)[:, 0]

    def adam(self, gradient: list[np.ndarray]) -> None:
        self.updates += 1
        parameters = self.network.weights + self.network.biases
        for p, g, m, v in zip(parameters, gradient, self.first, self.second, strict=True):
            m += f32(0.1) * (g - m)
            v += f32(0.001) * (g * g - v)
            top = m / f32(1 - 0.9**self.updates)
            p -= self.rate * top / (np.sqrt(v / f32(1 - 0.999**self.updates)) + f32(1e-8))

    def fit(
        self, x: np.ndarray, targets: np.ndarray, alive: np.ndarray, epochs: int, parts: int
    ) -> None:
        """Fit by least squares in units of the returns' spread; inputs are (time, episodes, …)."""
        seen = targets[alive][:, None]
        self.returns.update(seen)
        self.returns.count = min(self.returns.count, 10.0 * len(seen))
        goals = (targets - self.returns.mean[0]) / (np.sqrt(self.returns.square[0]) + f32(1e-8))
        size = x.shape[1] // parts
        minibatches = []
        for i in range(parts):
            some = slice(i * size, (i + 1) * size)
            counts = alive[:, some]
            minibatches.append((x[:, some][counts], goals[:, some][counts]))
        for _ in range(epochs):
            for inputs, goal in minibatches:
                values = self.network.layers(inputs)
                slope = (2 / f32(len(goal))) * (values[-1] - goal[:, None])
                self.adam(self.network.backward(values, slope))


# --- The parts of an iteration ------------------------------------------------------------------------


class Batch(NamedTuple):
    observations: np.ndarray  # (time, episodes, 29)
    actions: np.ndarray
    features: np.ndarray  # one row more
    signals: np.ndarray  # (time, episodes, 2): reward, −cost
    alive: np.ndarray
    terminated: np.ndarray


def sample(rng: np.random.Generator, policy: Policy, sight: Normaliser, episodes: int) -> Batch:
    state, alive = reset(rng, episodes), np.ones(episodes, bool)
    half_widths, rows = np.array([1.0, 0.25], f32), []
    for _ in range(HORIZON):
        seen, known = observe(state), features(state)
        noise = rng.standard_normal((episodes, 2), f32)
        action = policy.network(sight(seen)) + np.exp(policy.log_std) * noise
        state, reward, cost, over = step(
            state, half_widths * action, rng.standard_normal((episodes, 3), f32)
        )
        signals = np.stack([reward, -cost], axis=-1) * alive[:, None]
        rows.append((seen, action, known, signals, alive, over & alive))
        alive = alive & ~over
    seen, actions, known, signals, lived, ended = (
        np.stack(column) for column in zip(*rows, strict=True)
    )
    known = np.concatenate([known, features(state)[None]])
    return Batch(seen, actions, known, signals, lived, ended)


def critic_inputs(known: np.ndarray, sight: Normaliser) -> np.ndarray:
    clock = np.arange(len(known), dtype=f32)[:, None, None] / (len(known) - 1)
    clock = np.broadcast_to(clock.astype(f32), (*known.shape[:2], 1))
    return np.concatenate([sight(known), clock], axis=-1)


def advantages(
    batch: Batch, values: np.ndarray, index: int, discount: float, gae: float
) -> np.ndarray:
    """Return generalised advantages; the horizon ends an episode."""
    going_on = batch.alive & ~batch.terminated
    going_on[-1] = False
    result = np.zeros_like(values[:-1])
    ahead = np.zeros_like(values[0])
    for t in reversed(range(HORIZON)):
        residual = batch.signals[t, :, index] + discount * values[t + 1] * going_on[t] - values[t]
        ahead = np.where(batch.alive[t], residual + discount * gae * going_on[t] * ahead, 0)
        result[t] = ahead
    return result.astype(f32)


class Evidence(NamedTuple):
    """Rows of the steps taken. Weights sum over the episodes; advantages are centred."""

    weights: np.ndarray
    advantages: np.ndarray


def evidence(batch: Batch, found: np.ndarray, discount: float) -> Evidence:
    weights = (discount ** np.arange(HORIZON)[:, None] * batch.alive)[batch.alive].astype(f32)
    found = found[batch.alive]
    centred = found - (weights * found).sum() / weights.sum()
    return Evidence(weights / f32(batch.alive.shape[1]), centred)


def gradient(
    policy: Policy, values: list[np.ndarray], actions: np.ndarray, of: Evidence
) -> np.ndarray:
    """Return the gradient of Σ weights·ratio·advantage at ratio one."""
    each = (of.weights * of.advantages)[:, None]
    z = (actions - values[-1]) * np.exp(-policy.log_std)
    network = policy.network.backward(values, each * z * np.exp(-policy.log_std))
    return flat([*network, (each * (z**2 - 1)).sum(0)])


def fisher_product(
    policy: Policy, values: list[np.ndarray], weights: np.ndarray, vector: np.ndarray
) -> np.ndarray:
    """Return JᵀFJ·vector."""
    *change, log_std = like(policy.leaves, vector)
    share = (weights / weights.sum())[:, None]
    tangent = share * policy.network.forward(values, change) * np.exp(-2 * policy.log_std)
    return flat([*policy.network.backward(values, tangent), 2 * share.sum() * log_std])


def mean_curvature(product, rng: np.random.Generator, size: int, probes: int = 4) -> float:
    """Return the mean of the Fisher diagonal, estimated from a few sign vectors."""
    signs = np.where(rng.random((probes, size)) < 0.5, f32(-1), f32(1))
    return float(np.mean([sign @ product(sign) for sign in signs])) / size


def conjugate_gradients(product, right: np.ndarray, steps: int) -> np.ndarray:
    x, residual, direction = np.zeros_like(right), right.copy(), right.copy()
    square = first = residual @ residual
    for _ in range(steps):
        curved = product(direction)
        bend = direction @ curved
        if square <= 1e-10 * first or bend <= 0:
            break
        length = square / bend
        x += length * direction
        residual -= length * curved
        square, before = residual @ residual, square
        direction = residual + (square / before) * direction
    return x


def pcpo_step(
    g: np.ndarray, h: np.ndarray, to_g: np.ndarray, to_h: np.ndarray, needed: float, delta: float
) -> tuple[np.ndarray, bool]:
    """Improve, then project; recover if the constraint is out of reach. Return whether it did."""
    q, s = g @ to_g, h @ to_h
    if needed > 0 and needed**2 / s > 2 * delta:
        return np.sqrt(2 * delta / s) * to_h, True
    improved = np.sqrt(2 * delta / q) * to_g
    return improved + max(0.0, (needed - h @ improved) / s) * to_h, False


@dataclasses.dataclass
class Learner:
    """PCPO on Point Gather; `settings` is Holdfast's record of settings."""

    settings: object
    rng: np.random.Generator
    discount: float = 0.995
    limit: float = 0.1

    def __post_init__(self) -> None:
        hidden, rate = self.settings.hidden, self.settings.critic_learning_rate
        network = MLP.create(self.rng, (29, *hidden, 2), 0.01)
        self.policy = Policy(network, np.zeros(2, f32))
        self.critics = [
            Critic(MLP.create(self.rng, (45, *hidden, 1), 0.01), rate) for _ in range(2)
        ]
        self.of_policy, self.of_critic = Normaliser(29), Normaliser(44)
        self.tightening = 0.0

    def iterate(self) -> tuple[float, float]:
        """Perform one update; return the reward and the cost of the policy that drew the batch."""
        settings = self.settings
        batch = sample(self.rng, self.policy, self.of_policy, -(-settings.batch_size // HORIZON))
        returns = batch.signals.sum(0)
        reward, utility = (float(x) for x in returns.mean(0))
        error = float(returns[:, 1].std()) / len(returns) ** 0.5
        measured = -utility + settings.limit_confidence * error
        inputs = critic_inputs(batch.features, self.of_critic)
        discounts, gaes = (self.discount, 1.0), (settings.reward_gae, settings.cost_gae)
        found, targets = [], []
        for i, critic in enumerate(self.critics):
            values = critic(inputs.reshape(-1, 45)).reshape(inputs.shape[:2])
            each = advantages(batch, values, i, discounts[i], gaes[i])
            targets.append(each + values[:-1])
            found.append(evidence(batch, each, discounts[i]))

        needed = measured - (self.limit - self.tightening)
        step, recovered = self.direction(batch, found, needed)
        self.policy = self.line_search(batch, found, step, needed)

        for critic, target in zip(self.critics, targets, strict=True):
            epochs, parts = settings.critic_epochs, settings.critic_minibatches
            critic.fit(inputs[:-1], target, batch.alive, epochs, parts)
        if not recovered:
            aim = self.limit * (1 - settings.limit_margin)
            excess = np.clip(measured - aim, -self.limit / 2, self.limit / 2)
            moved = self.tightening + settings.limit_gain * excess
            self.tightening = float(np.clip(moved, 0.0, 2 * self.limit))
        was, from_mean = np.sqrt(self.of_policy.square + f32(1e-6)), self.of_policy.mean
        self.of_policy.update(batch.observations[batch.alive])
        self.policy.rebase(
            np.sqrt(self.of_policy.square + f32(1e-6)) / was,
            (self.of_policy.mean - from_mean) / was,
        )
        self.of_critic.update(batch.features[:-1][batch.alive])
        return reward, -utility

    def direction(
        self, batch: Batch, found: list[Evidence], needed: float
    ) -> tuple[np.ndarray, bool]:
        settings, policy = self.settings, self.policy
        values = policy.network.layers(self.of_policy(batch.observations[batch.alive]))
        g, h = (gradient(policy, values, batch.actions[batch.alive], each) for each in found)
        # Fisher products on the first episodes of the batch.
        some = np.zeros_like(batch.alive)
        some[:, : max(1, round(settings.fisher_share * batch.alive.shape[1]))] = True
        some = some[batch.alive]
        few, weights = [layer[some] for layer in values], found[0].weights[some]

        def undamped(vector: np.ndarray) -> np.ndarray:
            return fisher_product(policy, few, weights, vector)

        damping = f32(settings.damping * mean_curvature(undamped, self.rng, len(g)))

        def product(vector: np.ndarray) -> np.ndarray:
            return undamped(vector) + damping * vector

        to_g, to_h = (conjugate_gradients(product, v, settings.cg_steps) for v in (g, h))
        return pcpo_step(g, h, to_g, to_h, needed, settings.trust_region)

    def line_search(
        self, batch: Batch, found: list[Evidence], step: np.ndarray, needed: float
    ) -> Policy:
        settings, old = self.settings, self.policy
        x, actions = self.of_policy(batch.observations[batch.alive]), batch.actions[batch.alive]
        old_mean, start = old.network(x), flat(old.leaves)
        old_density = old.log_density(old_mean, actions)
        weights = found[0].weights / found[0].weights.sum()
        for k in range(settings.line_search_tries):
            new = old.with_parameters(start + f32(settings.line_search_decay**k) * step.astype(f32))
            mean = new.network(x)
            gap = new.log_std - old.log_std
            shift = ((mean - old_mean) * np.exp(-old.log_std)) ** 2
            kl = (weights * 0.5 * (np.exp(2 * gap) + shift - 1 - 2 * gap).sum(-1)).sum()
            ratio = np.exp(new.log_density(mean, actions) - old_density)
            gains = [(each.weights * ratio * each.advantages).sum() for each in found]
            kept = gains[1] >= min(needed, 0.0)
            if kl <= settings.trust_region and kept and (needed > 0 or gains[0] > 0):
                return new
        return old

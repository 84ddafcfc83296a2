"""A shield: a Gymnasium wrapper that keeps the limits of a table, whatever acts inside it.

Let V be the worst-case cost-to-go of a fallback policy, and Q(s,a) a bound on the worst case of the
action a and the fallback policy after it. An action in place of the fallback policy's costs at most the
regret γ^t·(Q(s,a) − V(s)) more, under every kernel of the set. The shield starts with the slack
x_0 = limit − E V(s_0). It passes on an action whose regret is at most the slack, and subtracts the
regret. Otherwise it draws the action from the fallback policy.

*What is guaranteed.* The sum of the costs so far, γ^t·V(s_t) and x_t is a supermartingale under every
kernel of the set, also one that depends on the history, and whatever actions are proposed. x_t is never
negative. So the mean discounted cost is at most E V(s_0) + x_0 = limit.

*What is not.* The guarantee is for the mean over episodes, like the constraint, not for each episode. It
requires that the true kernel is in the set, that first states come from the model's initial
distribution, and that episodes are not truncated: utility after a truncation is lost.

The slack counts expected and not realised costs. It would be wrong to credit an episode with costs that
it happened to avoid: expensive episodes would still exceed the limit, and cheap ones would use it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float

from holdfast.model import RobustCMDP
from holdfast.model.names import PolicyLike
from holdfast.tabular.evaluation.costs_to_go import costs_to_go


class Shield(gymnasium.Wrapper):
    """A wrapper that replaces actions where they could break the limits of a table in the worst case.

    Whatever acts in the wrapped environment, the mean discounted costs keep the limits of the model
    under every kernel of its set. `info` has "action", the action taken; "overridden", whether it is
    another than the proposed one; and "slack", what is left for regret, per constraint.

    Arguments:
        env: environment with discrete actions whose observations are states of the model.
        fallback: policy that keeps the limits in the worst case, as in `evaluate`. The lower its costs,
            the more slack there is; the better its reward, the less an override loses.
        model: the table; by default the one of a Holdfast environment.
        state: function from an observation to the index of a state, for other observations.

    Attributes:
        slack: slack left in this episode, one number per constraint.
        steps: number of steps since the shield was made.
        overridden: number of these steps whose action was replaced.

    Raises:
        ValueError: the spaces do not fit the model, or the fallback policy breaks a limit.

    Example:
        >>> import gymnasium, numpy as np, holdfast as hf
        >>> env = gymnasium.make("holdfast/Gambler-v0")
        >>> careful = np.zeros(17, int)  # always stake 1
        >>> shielded = hf.Shield(env, careful)
        >>> _ = shielded.reset(seed=0, options={"state": 8})
        >>> *_, info = shielded.step(3)  # stake 4
        >>> info["overridden"], round(float(info["slack"][0]), 2)
        (False, 1.24)
    """

    def __init__(
        self,
        env: gymnasium.Env,
        fallback: PolicyLike,
        *,
        model: RobustCMDP | None = None,
        state: Callable[[Any], int] | None = None,
    ) -> None:
        super().__init__(env)
        model = model if model is not None else getattr(env.unwrapped, "model", None)
        if not isinstance(model, RobustCMDP):
            raise ValueError(f"model: expected a RobustCMDP, got {model!r}")
        seen, acts = env.observation_space, env.action_space
        if not (isinstance(acts, spaces.Discrete) and acts.n == model.actions):
            raise ValueError(f"env: expected {model.actions} discrete actions, got {acts}")
        if state is None and not (isinstance(seen, spaces.Discrete) and seen.n == model.states):
            raise ValueError(
                f"env: expected {model.states} states as observations, got {seen}; pass state="
            )
        self.model, self._state_of = model, state or int
        self.costs = costs_to_go(model, fallback)
        self.first_slack = _first_slack(model, self.costs)
        self.steps = self.overridden = 0
        self._draw = np.random.default_rng()
        self._begin(0)

    def _begin(self, state: int) -> None:
        self._state, self._weight, self.slack = state, 1.0, self.first_slack.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the whole slack."""
        observation, info = super().reset(seed=seed, options=options)
        if seed is not None:
            # Not the stream of the environment's own generator, which has the same seed: the fallback
            # policy's draws have to be independent of the transitions.
            self._draw = np.random.default_rng((seed, 1))
        self._begin(self._state_of(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action if its regret is within the slack, otherwise one of the fallback policy."""
        here, proposed = self._state, int(action)
        regret = self._weight * (self.costs.actions[:, here, proposed] - self.costs.values[:, here])
        allowed = self.model.allowed is None or self.model.allowed[here, proposed]
        taken = proposed
        if allowed and (regret <= self.slack).all():
            self.slack = self.slack - regret
        else:
            taken = int(self._draw.choice(self.model.actions, p=self.costs.policy[here]))
        self._weight *= self.model.discount
        self.steps += 1
        self.overridden += taken != proposed
        observation, reward, terminated, truncated, info = super().step(taken)
        self._state = self._state_of(observation)
        info = {**info, "action": taken, "overridden": taken != proposed, "slack": self.slack}
        return observation, reward, terminated, truncated, info


def _first_slack(model: RobustCMDP, costs: Any) -> Float[np.ndarray, " m"]:
    """Return the slack at the start of an episode.

    Raises:
        ValueError: the fallback policy breaks a limit.
    """
    limits = np.array([-constraint.utility_threshold for constraint in model.constraints])
    # Rounding lets a step of the fallback policy cost a little more than its value says.
    missing = ((costs.policy * costs.actions).sum(-1) - costs.values).max(-1)
    missing = np.maximum(missing, 0.0) / (1 - model.discount)
    slack = limits - costs.values @ np.asarray(model.initial) - missing
    for constraint, left in zip(model.constraints, slack, strict=True):
        if not left >= 0:
            raise ValueError(
                f"fallback: it breaks {constraint} in the worst case by {-left:.4g}; choose a policy "
                "that keeps it"
            )
    return slack

"""Training settings for simulators with slow steps and long episodes, such as robots."""

from __future__ import annotations

from typing import Any

from holdfast.simulators.environment import Box, Discrete


def settings_for_slow_steps(space: Box | Discrete) -> dict[str, Any]:
    """Return default settings; `holdfast bench velocity-ablation` compares them with others.

    Small batches and many critic updates, because a simulator step is the most expensive part. A small
    initial standard deviation of actions: large noise on a robot teaches little.
    """
    small = {"initial_std": 0.4} if isinstance(space, Box) else {}
    critic = {"critic_epochs": 10, "critic_minibatches": 40, "critic_learning_rate": 1e-3}
    return {"batch_size": 10_000, "hidden": (64, 64), "fisher_share": 0.5, **critic, **small}

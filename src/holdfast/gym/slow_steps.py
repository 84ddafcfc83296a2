"""Training settings for simulators with slow steps and long episodes, such as robots."""

from __future__ import annotations

from typing import Any

from holdfast.simulators.environment import Box, Discrete


def settings_for_slow_steps(space: Box | Discrete) -> dict[str, Any]:
    """Return default settings; `holdfast bench velocity-ablation` compares them with others.

    Few steps an update and many steps of the critics, since a step costs more than either. Actions that
    start with a small spread: a robot learns little from being shaken.
    """
    small = {"initial_std": 0.4} if isinstance(space, Box) else {}
    critic = {"critic_epochs": 10, "critic_minibatches": 40, "critic_learning_rate": 1e-3}
    return {"batch_size": 10_000, "hidden": (64, 64), "fisher_share": 0.5, **critic, **small}

"""Holdfast's environments in Gymnasium's registry, as `holdfast/Name-v0`.

`import holdfast` calls `register`: Gymnasium 1.x looks for no plugins by itself. Nothing heavier than
Gymnasium is imported before an environment is made.
"""

from __future__ import annotations

_HOME = "holdfast.environments.as_gymnasium"

# The name after "holdfast/", how it is made, with what, and the steps after which it is cut.
ENVIRONMENTS: dict[str, tuple[str, dict[str, str], int]] = {
    "Gambler": ("TableEnv", {"model": "gambler"}, 200),
    "NChain": ("TableEnv", {"model": "n-chain"}, 200),
    "FrozenLake": ("TableEnv", {"model": "frozen-lake"}, 200),
    "PointGather": ("SimulatorEnv", {"simulator": "point-gather"}, 15),
}


def register() -> None:
    """Adds what is not there yet."""
    from gymnasium.envs.registration import register, registry

    for name, (kind, arguments, steps) in ENVIRONMENTS.items():
        identity = f"holdfast/{name}-v0"
        if identity not in registry:
            register(
                id=identity,
                entry_point=f"{_HOME}:{kind}",
                kwargs=dict(arguments),
                max_episode_steps=steps,
            )

"""Models by name, with the paper's numbers as defaults.

A new model is one file beside this one and one line in `MODELS`.
"""

from collections.abc import Callable

from holdfast._model import RobustCMDP
from holdfast.environments.frozen_lake import frozen_lake
from holdfast.environments.gambler import gambler
from holdfast.environments.n_chain import n_chain

MODELS: dict[str, Callable[..., RobustCMDP]] = {
    "gambler": gambler,
    "n-chain": n_chain,
    "frozen-lake": frozen_lake,
}

__all__ = ["MODELS", "frozen_lake", "gambler", "n_chain"]

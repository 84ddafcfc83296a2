"""A model with two roads: a fast one that may cost a toll, and a slow one that is free."""

import numpy as np

import holdfast as hf
from holdfast_example.cvar import CVaR


def two_roads(radius: float = 0.5) -> hf.RobustCMDP:
    """Return the model. States: home, road, work. Actions: fast, slow.

    Arguments:
        radius: radius of the CVaR set.
    """
    transitions = np.zeros((3, 2, 3))
    transitions[0] = [[0.1, 0.3, 0.6], [0.2, 0.7, 0.1]]
    transitions[1] = [[0.2, 0.2, 0.6], [0.1, 0.6, 0.3]]
    transitions[2] = [[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]
    reward = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    toll = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    return hf.RobustCMDP(
        transitions=transitions,
        reward=reward,
        constraints=[hf.at_most(toll, 8.0, name="toll")],
        discount=0.9,
        uncertainty=CVaR(radius),
    )

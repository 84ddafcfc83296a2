"""Physical parameters that a user's function sets, where the physics is not MuJoCo's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from holdfast.gym.hosts.host import PARAMETERS

SetParameter = Callable[[Any, str, float], object]


class ParameterHook(gymnasium.Wrapper):
    """An environment with a method `set_parameter(name, factor)`, made of a function of it.

    Arguments:
        env: the environment.
        function: function of the unwrapped environment, the name of a parameter, and the factor on its
            nominal value.
    """

    def __init__(self, env: gymnasium.Env, function: SetParameter) -> None:
        super().__init__(env)
        self._function = function

    def set_parameter(self, name: str, factor: float) -> None:
        """Set a parameter to a multiple of its nominal value."""
        self._function(self.env.unwrapped, name, factor)


class HookedParameters:
    """The parameters of an environment that has a method `set_parameter(name, factor)`.

    It has the interface of `Physics` as far as parameters go.

    Example:
        >>> seen = []
        >>> parameters = HookedParameters(lambda name, factor: seen.append((name, factor)))
        >>> parameters.set_factors(("mass", "gravity"), [1.5, 1.0])
        >>> parameters.set_factors(("mass", "gravity"), [1.5, 0.5])
        >>> parameters.reset()
        >>> seen
        [('mass', 1.5), ('gravity', 0.5), ('mass', 1.0), ('gravity', 1.0)]
    """

    adjustable = PARAMETERS

    def __init__(self, set_parameter: Callable[[str, float], object]) -> None:
        self._set = set_parameter
        self._factors: dict[str, float] = {}

    @classmethod
    def of(cls, env: gymnasium.Env) -> HookedParameters | None:
        """Return the parameters of an environment, or None if it has no such method."""
        if not env.has_wrapper_attr("set_parameter"):
            return None
        return cls(env.get_wrapper_attr("set_parameter"))

    def set_factors(self, names: Sequence[str], factors: ArrayLike) -> None:
        """Set parameters to multiples of their nominal values; only changes reach the environment."""
        for name, factor in zip(names, np.asarray(factors, np.float64).tolist(), strict=True):
            if self._factors.get(name, 1.0) != factor:
                self._set(name, factor)
                self._factors[name] = factor

    def check(self, name: str) -> None:
        """Set a parameter to its nominal value; raise a ValueError if that fails."""
        try:
            self._set(name, 1.0)
        except Exception as error:
            raise ValueError(f"set_parameter: it failed for {name!r}: {error}") from error

    def reset(self) -> None:
        """Set all parameters that were set to their nominal values."""
        for name in self._factors:
            self._set(name, 1.0)
        self._factors.clear()

"""What the certificate of a simulator assumes, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.simulators.certificates.bounded_signal import SignalRange
from holdfast.simulators.certificates.stress_result import DRAWN, LIKELY
from holdfast.simulators.environment import Environment

# What nature may choose, and when.
ONCE, EVERY_STEP, BOX = "once an episode", "every step", "box of parameters"
NOMINAL = "nominal kernel"
ACTING = {
    DRAWN: "Actions are drawn, as in training.",
    LIKELY: "The policy takes its most likely actions.",
}


class Sizes(NamedTuple):
    """Samples and risks of a certificate.

    Attributes:
        episodes: fresh episodes.
        draws: fresh disturbances at each visited state.
        repeats: episodes of each draw, where nature draws once an episode.
        risk: probability that a statement about one signal fails.
        found_share: share of this risk for what the attack found.
    """

    episodes: int
    draws: int
    repeats: int
    risk: float
    found_share: float


def of_a_box(box: Mapping[str, tuple[float, float]], draws: int) -> tuple[str, ...]:
    """Return the assumptions of limits on the shares of a box."""
    ends = ", ".join(f"{name} in [{low:g}, {high:g}]" for name, (low, high) in box.items())
    return (
        f"Parameters are uniform on the box: {ends}.",
        f"{draws:,} draws, one episode each; exact binomial limits.",
        "A share of the box is no worst case: it never makes a cost hold.",
    )


def of_bounds(
    method: str,
    env: Environment,
    ranges: Sequence[SignalRange | None],
    sizes: Sizes,
    outside: int,
) -> tuple[str, ...]:
    """Return the assumptions of bounds on the worst case.

    Arguments:
        method: ONCE, EVERY_STEP or NOMINAL.
        env: the simulator.
        ranges: range of the negative reward and of each cost in one step, if it was declared.
        sizes: samples and risks.
        outside: number of values outside these ranges.
    """
    channel = getattr(env.disturbance, "channel", "outcome")
    names = ("reward", *env.cost_names)
    said = [f"{names[i]} in {_shown(i, each)}" for i, each in enumerate(ranges) if each]
    cut = f" {outside:,} values were outside and were cut." if outside else ""
    any_law = "has any law within the radius of the nominal"
    laws = {
        ONCE: f"of the draw of an episode, given its first state and action, {any_law}",
        EVERY_STEP: f"of every step, given its state and action, {any_law}",
        NOMINAL: "has its nominal law",
    }
    used = f"{sizes.episodes:,} fresh episodes"
    if sizes.repeats > 1:
        used = (
            f"{sizes.episodes:,} fresh draws, each with the mean of {sizes.repeats:,} episodes that "
            "share it, the first state and the first action"
        )
    if method != NOMINAL:
        used += ", half of them for the choice of α"
    if method == EVERY_STEP:
        used += f", with {sizes.draws:,} fresh draws at each visited state"
    share = f"{100 * sizes.found_share:g} %"
    lines = [
        f"The disturbance ({channel}) {laws[method]}.",
        f"Declared ranges: {'; '.join(said)}. The statements are about signals within them.{cut}",
        f"{used}.",
        f"Each signal has a risk of {sizes.risk:.3g}: {share} for found, the rest for the bound; every "
        "limit is the better of empirical Bernstein and betting, with half of its risk each.",
    ]
    if ranges[0] is None:
        lines.append("No range of the reward was declared, so nothing is proved about it.")
    return tuple(lines)


def _shown(index: int, given: SignalRange) -> str:
    return str(SignalRange(-given.high, -given.low)) if index == 0 else str(given)

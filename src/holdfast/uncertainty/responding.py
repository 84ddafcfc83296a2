"""Sets that compute the worst response and its dual value together."""

from __future__ import annotations

import abc
from typing import ClassVar

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty.protocol import UncertaintySet
from holdfast.uncertainty.rows import EPS, PerRow, Response, Rows, RowScale


class RespondingSet(UncertaintySet):
    """A set that computes the worst response and its dual value together, in `respond`.

    The dual value is computed for targets minus their smallest, so that its error is proportional to
    their span.
    """

    # Rounding errors of the dual value, in units of eps·span: for every term of a sum, and besides. The
    # derivation is in docs/explanation/certificates.md.
    per_term: ClassVar[float] = 0.5
    besides: ClassVar[float] = 8.0

    @abc.abstractmethod
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""

    @compiled_float64
    def lower_rounding(self, p: Rows, y: Rows, response: Response) -> PerRow:
        """Return a bound on the rounding error of `response.lower`."""
        del response
        scale = RowScale.of(self.reach(p), y)
        return EPS * ((self.per_term * scale.terms + self.besides) * scale.span + 2 * scale.size)

    @compiled_float64
    def member_share(self, p: Rows, q: Rows) -> PerRow:
        """Return a share t in [0, 1] such that p + t·(q − p) is a proved member of the set."""
        return self._share_of_divergence(p, q, EPS * (8 + (p > 0).sum(-1)))

    def worst_response(self, p: Rows, y: Rows) -> Rows:
        """Return the member q that minimises q·y."""
        return self.respond(p, y).kernel

    def dual_value(self, p: Rows, y: Rows) -> PerRow:
        """Return a lower bound on min q·y over the set, valid at any value of the dual variable."""
        return self.respond(p, y).lower

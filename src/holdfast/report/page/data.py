"""The log that a model comes from: a summary, and a table of its pairs."""

from __future__ import annotations

from holdfast.model import RobustCMDP
from holdfast.report.page.certificate import value_text
from holdfast.report.page.content import Block, Card, Cell, PageTable

# Tables with more pairs are cut; `model.data` has them all.
_MOST_PAIRS = 200


def data_blocks(model: RobustCMDP) -> list[Block]:
    """Return the summary of the data and the visits of every pair; nothing without a log."""
    data = model.data
    if data is None or model.state_names is None or model.action_names is None:
        return []
    facts = PageTable("facts", "", ["", ""], [[*map(Cell, fact)] for fact in data.facts()], (0, 1))
    pairs = sum(map(len, data.visits))
    if data.never_visited:
        verdict = Cell(f"{len(data.never_visited)} of {pairs} pairs were never visited.", "bad")
    else:
        verdict = Cell("Every pair of a state and an action was visited.", "good")
    statements = [data.unvisited_in_words(), *(f"Assumed: {each}." for each in data.assumptions)]
    card = Card("data", "Data", verdict, [*filter(None, statements)], facts)
    head = ["state", "action", "visits", *data.signals]
    rows = [
        [
            *(Cell(model.state_names[s]), Cell(model.action_names[a])),
            Cell(f"{n:,}", "" if n else "bad"),
            *(
                Cell(_interval(x.mean[s][a], x.lower[s][a], x.upper[s][a]))
                for x in data.signals.values()
            ),
        ]
        for s, row in enumerate(data.visits)
        for a, n in enumerate(row)
    ]
    title = "Visits, and means of signals with their limits"
    if len(rows) > _MOST_PAIRS:
        rows.sort(key=lambda cells: int(cells[2].text.replace(",", "")))
        rows, title = rows[:_MOST_PAIRS], f"{title}: the {_MOST_PAIRS} pairs with the fewest visits"
    return [card, PageTable("pairs", title, head, rows, (0, 1))]


def _interval(mean: float, lower: float, upper: float) -> str:
    if lower == upper:
        return value_text(mean)
    low, middle, high = (f"{x:.3g}".replace("-", "−") for x in (lower, mean, upper))
    return f"{middle} [{low}, {high}]"

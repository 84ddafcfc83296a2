"""An example of a package that extends Holdfast through entry points."""

from holdfast_example.cvar import CVaR
from holdfast_example.example_pcpo import EXAMPLE_PCPO
from holdfast_example.random_search import RANDOM_SEARCH, RandomSearch
from holdfast_example.two_roads import two_roads

__all__ = ["EXAMPLE_PCPO", "RANDOM_SEARCH", "CVaR", "RandomSearch", "two_roads"]

"""Mechanisms known from the literature, as composable source: level 2 without a language model.

Every mechanism is one class in a module of its own. `compose` copies the classes that are asked for into one module
that stands alone: a strategy that a reader can read from top to bottom, and that runs where this package is not.
"""

from outer.catalogue.compose import compose
from outer.catalogue.mechanism import CATALOGUE, Mechanism, conflict, mechanism

__all__ = ["CATALOGUE", "Mechanism", "compose", "conflict", "mechanism"]

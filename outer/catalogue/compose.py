"""Writes a strategy module: the classes of the mechanisms, and a `Strategy` that calls them.

What is written stands alone. Each class is copied as it stands in its own module here, with the functions that it uses
from `common`; nothing is copied that is not used.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from inner.syntax import parse
from outer.catalogue.mechanism import Mechanism, conflict, mechanism

WIDTH = 120
IDEAS = 4
"""How many ideas the model is asked for where a mechanism chooses among them."""

_HERE = Path(__file__).parent
_ORDER = ("direct", "view", "focus", "avoid", "choose", "accept")
_STRATEGY_IMPORTS = """
import random
from inner.history import Ask, Experiment, History, Proposal, Request, TaskView
"""


def compose(names: Iterable[str]) -> str:
    """A complete strategy module: the greedy loop of the seed, with these mechanisms.

    Args:
        names: of mechanisms of the catalogue, at least one. Proposals of their own are tried in the order given; apart
            from that the order does not matter.

    Raises:
        ValueError: no mechanism, or two that cannot be in one strategy.
        KeyError: a name that is not in the catalogue.
    """
    chosen = [mechanism(name) for name in names]
    if not chosen:
        raise ValueError("a composed strategy needs at least one mechanism: without any it is inner/strategy.py")
    if (why := conflict(entry.name for entry in chosen)) is not None:
        raise ValueError(why)
    chosen.sort(key=lambda entry: _ORDER.index(entry.role))
    classes = {entry: _definitions(entry.name)[entry.class_name] for entry in chosen}
    body = [_strategy(classes), *classes.values()]
    body += _shared("\n".join(body))
    heading = '"""A search strategy, composed of mechanisms known from the literature: one class each."""'
    imports = _imports("\n".join(body), [_STRATEGY_IMPORTS, *(_read(name) for name in ("common", *map(_name, chosen)))])
    return "\n\n".join([heading, imports]) + "\n\n\n" + "\n\n\n".join(body) + "\n"


def _name(entry: Mechanism) -> str:
    return entry.name


@cache
def _read(module: str) -> str:
    return (_HERE / f"{module}.py").read_text(encoding="utf-8")


def _definitions(module: str) -> dict[str, str]:
    """The classes and functions of a module of this folder, by name, as they are written."""
    source = _read(module)
    nodes = [node for node in parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {node.name: ast.get_source_segment(source, node) or "" for node in nodes}


def _used(source: str) -> set[str]:
    return {node.id for node in ast.walk(parse(source)) if isinstance(node, ast.Name)}


def _shared(source: str) -> list[str]:
    """The functions of `common` that a source uses, and those that these use, in their order."""
    functions = _definitions("common")
    wanted: set[str] = set()
    while more := (_used("\n".join([source, *(functions[name] for name in wanted)])) & functions.keys()) - wanted:
        wanted |= more
    return [functions[name] for name in functions if name in wanted]


def _imports(body: str, sources: Iterable[str]) -> str:
    """The import lines that a body needs, out of those of the sources it was taken from, sorted as ruff sorts them."""
    used = _used(body)
    modules: dict[str, set[str]] = {}
    for node in (node for source in sources for node in parse(source).body):
        if isinstance(node, ast.Import):
            modules |= {alias.name: set() for alias in node.names if alias.name in used}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(("outer", "__future__")):
            if names := {alias.name for alias in node.names} & used:
                modules[node.module] = modules.get(node.module, set()) | names
    plain = [f"import {module}" for module, names in sorted(modules.items()) if not names]
    standard = [
        _from(module, names) for module, names in sorted(modules.items()) if names and module != "inner.history"
    ]
    groups = [
        ["from __future__ import annotations"],
        plain + standard,
        [_from("inner.history", modules["inner.history"])],
    ]
    return "\n\n".join("\n".join(group) for group in groups)


def _from(module: str, names: Iterable[str]) -> str:
    ordered = sorted(names, key=lambda name: (name[0].islower(), name))
    line = f"from {module} import {', '.join(ordered)}"
    return line if len(line) <= WIDTH else "\n".join([f"from {module} import (", *(f"    {n}," for n in ordered), ")"])


def _strategy(classes: dict[Mechanism, str]) -> str:
    """The class `Strategy`, which calls each mechanism where it has a method to be called."""
    methods: dict[str, dict[str, ast.FunctionDef]] = {}
    for entry, source in classes.items():
        nodes = ast.walk(parse(source))
        methods[entry.name] = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}

    def having(method: str) -> list[str]:
        return [name for name in methods if method in methods[name]]

    def made(entry: Mechanism) -> str:
        init = methods[entry.name].get("__init__")
        arguments = [argument.arg for argument in init.args.args[1:]] if init else []
        return f"{entry.class_name}({', '.join(arguments)})"

    # A mechanism may have the search stand elsewhere than at the best, as annealing does: then it places proposals.
    elsewhere = having("base")
    base = f"self.{elsewhere[0]}.base(history)" if elsewhere else "history.best"
    chosen = f"self.{elsewhere[0]}.place(history, {{}})" if elsewhere else "{}"
    own = "a mechanism's own proposal, else " if having("propose") else ""
    lines = [
        "class Strategy:",
        '    """Greedy search, with more on top.',
        "",
        *(line for entry in classes for line in _note(entry)),
        '    """',
        "",
        "    def __init__(self, task: TaskView, rng: random.Random) -> None:",
        "        self.task = task",
        "        self.rng = rng",
        *(f"        self.{entry.name} = {made(entry)}" for entry in classes),
        "",
        "    def propose(self, history: History, ask: Ask) -> Proposal:",
        f'        """What to try next: {own}an idea of the model, else a step at random."""',
        f"        base = {base}",
    ]
    for name in having("propose"):
        lines += [
            f"        if (proposal := self.{name}.propose(history, base)) is not None:",
            f"            return {chosen.format('proposal')}",
        ]
    lines += [
        f"        request = Request({f'candidates={IDEAS}' if having('choose') else ''})",
        *(f"        request = self.{name}.shape(history, request)" for name in having("shape")),
        "        ideas = ask(request)",
        *(f"        ideas = self.{name}.choose(history, base, ideas)" for name in having("choose")),
        "        if not ideas:",
        "            ideas = (untried_step(self.task, self.rng, history, base, request),)",
        f"        return {chosen.format('ideas[0]')}",
        "",
        "    def accept(self, history: History, candidate: Experiment) -> bool:",
    ]
    if rules := having("accept"):
        lines += [
            '        """Whether the rule of acceptance keeps it."""',
            f"        return self.{rules[0]}.accept(history, candidate)",
        ]
    else:
        lines += [
            '        """Keep what is better than the best so far."""',
            "        return history.gain(candidate.score, history.best.score) > 0",
        ]
    return "\n".join(lines)


def _note(entry: Mechanism) -> list[str]:
    """What the docstring says of a mechanism: what it does, and who says so."""
    text = f"{entry.title}: {entry.why} ({entry.citation}, {entry.work})."
    return textwrap.wrap(text, WIDTH, initial_indent="    - ", subsequent_indent="      ")

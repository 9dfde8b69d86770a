"""Names to parts: entry points, in-process registration, and composition ("reuse:prefetch:latent")."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from specdec.errors import CompositionError, OptionError, UnknownPlugin, nearest

DRAFTERS, VERIFIERS, TARGETS = "specdec.drafters", "specdec.verifiers", "specdec.targets"
_KINDS = {DRAFTERS: "drafter", VERIFIERS: "verifier", TARGETS: "target"}


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registered name: where it comes from, and how to load it."""

    group: str
    name: str
    distribution: str
    load: Callable[[], Any]


_local: dict[tuple[str, str], list[Plugin]] = {}


def register(group: str, name: str, factory: Callable[..., Any]) -> Callable[[], None]:
    """Register `factory` for this process; returns a function that undoes it.

    A local name hides an installed one, and an earlier local one, until it is undone; the order does not matter.
    """
    _known_group(group)
    plugin = Plugin(group, name, "this process", lambda: factory)
    stack = _local.setdefault((group, name), [])
    stack.append(plugin)

    def undo() -> None:
        if plugin in stack:
            stack.remove(plugin)

    return undo


def plugins(group: str) -> dict[str, Plugin]:
    """Every registered name of the group, sorted; reads metadata only."""
    _known_group(group)
    found = {ep.name: _from_entry_point(group, ep) for ep in _entry_points(group)}
    found.update({name: stack[-1] for (g, name), stack in _local.items() if g == group and stack})
    return dict(sorted(found.items()))


def names(group: str) -> list[str]:
    """The registered names of the group, sorted."""
    return list(plugins(group))


def load(group: str, name: str) -> Any:
    """The class or factory registered under `name`.

    Raises UnknownPlugin with the known names and the closest one, or CompositionError naming the distribution whose
    plug-in failed to import.
    """
    known = plugins(group)
    if name not in known:
        raise UnknownPlugin(
            f"{_KINDS[group]} {name!r} is not registered (known: {', '.join(known) or 'none'}).{nearest(name, known)}"
        )
    plugin = known[name]
    try:
        return plugin.load()
    except (ImportError, AttributeError) as error:
        raise CompositionError(
            f"{_KINDS[group]} {name!r} of {plugin.distribution} cannot be loaded: {error}. "
            "Reinstall that distribution or remove it."
        ) from error


def build(group: str, expression: str, options: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """The part that `expression` names: "ngram", or wrappers and a base, "reuse:prefetch:ngram".

    The right-most name is the base; each name to its left wraps what stands right of it and takes it as its first
    argument. options holds keyword arguments by name: {"ngram": {"max_match": 8}}.
    """
    options = dict(options or {})
    chain = [part.strip() for part in expression.split(":")]
    stray = [name for name in options if name not in chain]
    if stray:
        raise OptionError(
            f"options were given for {stray[0]!r}, which {expression!r} does not name. "
            f"Give them for one of: {', '.join(chain)}."
        )
    *wrappers, base = chain
    part = _make(group, base, (), options.get(base, {}))
    for name in reversed(wrappers):
        part = _make(group, name, (part,), options.get(name, {}))
    return part


def _make(group: str, name: str, inner: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    factory = load(group, name)
    parameters = inspect.signature(factory).parameters
    accepted = [p for p in parameters if parameters[p].kind is not inspect.Parameter.VAR_KEYWORD]
    wraps = bool(accepted) and accepted[0] == "inner"
    kind = _KINDS[group]
    if inner and not wraps:
        raise CompositionError(
            f"{kind} {name!r} wraps nothing, so it can only stand right-most in {name}:... Move it to the end."
        )
    if wraps and not inner:
        raise CompositionError(f"{kind} {name!r} wraps another one; name it, as in {name + ':ngram'!r}.")
    own = [p for p in accepted if p != "inner"]
    for key in options:
        if key not in own and len(accepted) == len(parameters):
            raise OptionError(
                f"{kind} {name!r} has no option {key!r} (known: {', '.join(own) or 'none'}).{nearest(key, own)}"
            )
    needed = [
        p
        for p in own
        if parameters[p].default is inspect.Parameter.empty
        and parameters[p].kind is not inspect.Parameter.VAR_POSITIONAL
        and p not in options
    ]
    if needed:
        raise OptionError(f"{kind} {name!r} needs the option {needed[0]!r}; none was given.")
    return factory(*inner, **options)


def _known_group(group: str) -> None:
    if group not in _KINDS:
        raise UnknownPlugin(f"group {group!r} is not one of {', '.join(_KINDS)}.{nearest(group, _KINDS)}")


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _from_entry_point(group: str, point: EntryPoint) -> Plugin:
    distribution = point.dist.name if point.dist is not None else "an unknown distribution"
    return Plugin(group, point.name, distribution, point.load)

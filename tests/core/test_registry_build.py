"""Names to parts: composition, options, and the messages for what cannot be built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specdec import CompositionError, OptionError, UnknownPlugin, registry
from specdec.registry import DRAFTERS, VERIFIERS, build, load, names, plugins, register


class Base:
    def __init__(self, size: int = 3, *, eager: bool = False) -> None:
        self.size, self.eager = size, eager


class Wrapper:
    def __init__(self, inner: Any, depth: int = 1) -> None:
        self.inner, self.depth = inner, depth


class Demanding:
    def __init__(self, path: str, retries: int = 0) -> None:
        self.path, self.retries = path, retries


class Open:
    def __init__(self, **options: Any) -> None:
        self.options = options


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    undo = [register(DRAFTERS, part.__name__.lower(), part) for part in (Base, Wrapper, Demanding, Open)]
    yield
    for each in undo:
        each()


def test_a_name_builds_its_part_with_defaults() -> None:
    part = build(DRAFTERS, "base")
    assert (type(part), part.size, part.eager) == (Base, 3, False)


def test_options_reach_the_part_they_name() -> None:
    part = build(DRAFTERS, "wrapper:base", {"base": {"size": 9, "eager": True}, "wrapper": {"depth": 4}})
    assert (part.depth, part.inner.size, part.inner.eager) == (4, 9, True)


def test_wrappers_stand_around_what_is_right_of_them() -> None:
    part = build(DRAFTERS, " wrapper : wrapper:base ")
    assert [type(p) for p in (part, part.inner, part.inner.inner)] == [Wrapper, Wrapper, Base]


def test_a_factory_that_takes_any_option_is_given_any() -> None:
    assert build(DRAFTERS, "open", {"open": {"anything": 1}}).options == {"anything": 1}


@pytest.mark.parametrize("expression", ["base:wrapper", "base:base", "base:wrapper:base"])
def test_a_base_left_of_another_part_is_refused(expression: str) -> None:
    with pytest.raises(CompositionError, match=r"drafter '(base|wrapper)' wraps"):
        build(DRAFTERS, expression)


def test_a_wrapper_alone_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"'wrapper' wraps another one; name it, as in 'wrapper:ngram'"):
        build(DRAFTERS, "wrapper")


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match=r"drafter 'bace' is not registered .*base.* Did you mean 'base'\?"):
        build(DRAFTERS, "bace")


@pytest.mark.parametrize("expression", ["", "wrapper:", ":base"])
def test_an_empty_name_is_unknown(expression: str) -> None:
    with pytest.raises(UnknownPlugin, match=r"drafter '' is not registered"):
        build(DRAFTERS, expression)


def test_an_unknown_option_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no option 'sise' \(known: size, eager\)\. Did you mean 'size'\?"):
        build(DRAFTERS, "base", {"base": {"sise": 2}})


def test_the_inner_part_is_no_option() -> None:
    with pytest.raises(OptionError, match=r"'wrapper' has no option 'inner' \(known: depth\)"):
        build(DRAFTERS, "wrapper:base", {"wrapper": {"inner": None}})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(OptionError, match="drafter 'demanding' needs the option 'path'"):
        build(DRAFTERS, "demanding", {"demanding": {"retries": 2}})


def test_options_for_a_part_that_is_not_named_are_refused() -> None:
    with pytest.raises(OptionError, match="'ngram', which 'wrapper:base' does not name"):
        build(DRAFTERS, "wrapper:base", {"ngram": {}})


def test_building_leaves_the_options_alone() -> None:
    options = {"base": {"size": 2}}
    build(DRAFTERS, "base", options)
    assert options == {"base": {"size": 2}}


@pytest.mark.parametrize("call", [names, plugins, lambda group: register(group, "x", Base)])
def test_an_unknown_group_proposes_the_nearest(call: Any) -> None:
    with pytest.raises(UnknownPlugin, match=r"'specdec.drafter' is not one of .* Did you mean 'specdec.drafters'\?"):
        call("specdec.drafter")


def test_names_are_sorted_and_hold_installed_and_local_ones() -> None:
    found = names(DRAFTERS)
    assert found == sorted(found)
    assert {"none", "ngram", "draft_model", "base"} <= set(found)


def test_every_installed_rule_loads() -> None:
    rules = {name: load(VERIFIERS, name) for name in ("greedy", "match", "rejection", "tree_rejection", "typical")}
    assert [name for name, rule in rules.items() if rule.lossless] == ["greedy", "match", "rejection", "tree_rejection"]


def test_a_plugin_knows_its_distribution() -> None:
    found = plugins(DRAFTERS)
    assert found["none"].distribution == "specdec-kit"
    assert found["base"].distribution == "this process"


def test_a_local_name_hides_an_installed_one_until_it_is_undone() -> None:
    installed = load(DRAFTERS, "none")
    undo = register(DRAFTERS, "none", Base)
    assert load(DRAFTERS, "none") is Base
    undo()
    assert load(DRAFTERS, "none") is installed


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_registrations_are_undone_in_any_order(order: tuple[int, int]) -> None:
    undo = [register(DRAFTERS, "twice", Base), register(DRAFTERS, "twice", Wrapper)]
    assert load(DRAFTERS, "twice") is Wrapper
    undo[order[0]]()
    assert load(DRAFTERS, "twice") is (Base if order[0] else Wrapper)
    undo[order[1]]()
    assert "twice" not in names(DRAFTERS)


def test_undoing_twice_leaves_a_later_registration_alone() -> None:
    first = register(DRAFTERS, "again", Base)
    first()
    second = register(DRAFTERS, "again", Wrapper)
    first()
    assert load(DRAFTERS, "again") is Wrapper
    second()


def test_a_plugin_that_fails_to_import_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("No module named 'gone'")

    plugin = registry.Plugin(DRAFTERS, "broken", "some-dist", broken)
    monkeypatch.setattr(registry, "plugins", lambda group: {"broken": plugin})
    with pytest.raises(CompositionError, match="'broken' of some-dist cannot be loaded: No module named 'gone'"):
        load(DRAFTERS, "broken")

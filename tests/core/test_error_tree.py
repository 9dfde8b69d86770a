"""Errors are caught as specdec's own or as the builtin they stand for."""

from __future__ import annotations

import pytest

import specdec
from specdec import errors

BUILTIN = {
    "UnknownPlugin": LookupError,
    "OptionError": ValueError,
    "CompositionError": TypeError,
    "ContractError": RuntimeError,
    "CapacityError": RuntimeError,
    "UnsupportedModel": ValueError,
    "MissingExtra": ImportError,
}


def test_every_error_of_the_module_is_in_this_table() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.SpecdecError)]
    assert {c.__name__ for c in classes} == {"SpecdecError", *BUILTIN}


@pytest.mark.parametrize("name", BUILTIN)
def test_an_error_is_a_specdec_error_and_the_builtin_named(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.SpecdecError)
    assert issubclass(error, BUILTIN[name])
    assert getattr(specdec, name) is error


@pytest.mark.parametrize("name", BUILTIN)
def test_the_tree_in_the_docstring_names_the_builtin(name: str) -> None:
    assert f"{name} ({BUILTIN[name].__name__})" in str(errors.__doc__)


def test_nearest_proposes_the_closest_name_or_nothing() -> None:
    assert errors.nearest("eagel", ["eagle", "ngram"]) == " Did you mean 'eagle'?"
    assert errors.nearest("zzz", ["eagle", "ngram"]) == ""


def test_a_missing_extra_says_how_to_install_it() -> None:
    error = errors.missing_extra("xgrammar", "grammar", "json_schema")
    assert str(error) == (
        "json_schema needs the package 'xgrammar', which is not installed. "
        "Install it with: pip install 'specdec-kit[grammar]'"
    )

"""The engine's settings, from keywords, a TOML file and the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from specdec import EngineConfig, OptionError
from specdec.config import cache_dir, check_mode, env


@pytest.mark.parametrize("budget", [0, -1, 1.5, "4", True])
def test_a_budget_that_is_no_count_of_nodes_is_refused(budget: Any) -> None:
    with pytest.raises(OptionError, match=rf"budget .* found {budget!r}"):
        EngineConfig(budget=budget)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="policy is 'fixed' or 'cost'; found 'adaptive'"):
        EngineConfig(policy="adaptive")


def test_an_unknown_option_proposes_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'buget' is not known .* Did you mean 'budget'\?"):
        EngineConfig.of(buget=4)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().budget = 3  # type: ignore[misc]


def _file(folder: Path, text: str) -> Path:
    path = folder / "specdec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_toml_file_holds_options_of_the_engine_and_its_parts(tmp_path: Path) -> None:
    path = _file(tmp_path, '[engine]\nbudget = 4\npolicy = "cost"\n[engine.drafter_options.ngram]\nmax_match = 8\n')
    wanted = EngineConfig(budget=4, policy="cost", drafter_options={"ngram": {"max_match": 8}})
    assert EngineConfig.from_toml(path) == wanted


def test_a_toml_file_without_an_engine_table_gives_the_defaults(tmp_path: Path) -> None:
    assert EngineConfig.from_toml(str(_file(tmp_path, "[other]\nx = 1\n"))) == EngineConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine", "is not valid TOML"),
        ("[engine]\nbugdet = 3\n", "Did you mean 'budget'"),
        ("[engine]\nbudget = 0\n", "found 0"),
        ("engine = 3\n", "engine is a table"),
    ],
)
def test_a_toml_file_with_a_fault_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        EngineConfig.from_toml(_file(tmp_path, text))


@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_check_mode_reads_the_environment(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    monkeypatch.delenv("SPECDEC_CHECK", raising=False)
    if value is not None:
        monkeypatch.setenv("SPECDEC_CHECK", value)
    assert check_mode() is on


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_ANYTHING", "")
    assert env("ANYTHING") is None


def test_the_cache_folder_is_chosen_then_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("SPECDEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "specdec"

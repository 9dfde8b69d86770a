"""`specdec doctor` tells what a launch of SGLang depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specdec_sglang import doctor
from specdec_sglang.host import EXPECTED, Host
from test_host_contract import make
from typer.testing import CliRunner

from specdec.cli.app import app


def lines() -> dict[str, tuple[str, str, str]]:
    return {name: (state, found, advice) for name, state, found, advice in doctor.findings()}


def test_without_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "installed", classmethod(lambda cls: None))
    assert lines()["SGLang"][:2] == ("note", "not installed")


def test_with_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fits = make(tmp_path / "fits", EXPECTED)
    monkeypatch.setattr(Host, "installed", classmethod(lambda cls: fits))
    told = lines()
    assert told["SGLang names"][0] == "ok"
    assert told["SGLang plug-in"][0] == "ok"
    assert told["SGLang settings"][1] == "drafter ngram, rule match, budget 8"

    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    assert "SGLANG_PLUGINS=other" in lines()["SGLang plug-in"][1]
    monkeypatch.setenv("SPECDEC_DISABLE", "1")
    assert "SPECDEC_DISABLE" in lines()["SGLang plug-in"][1]
    monkeypatch.setenv("SPECDEC_DRAFTER", "ngrm")
    assert "Did you mean 'ngram'" in lines()["SGLang settings"][1]

    broken = make(tmp_path / "broken", EXPECTED[3:])
    monkeypatch.setattr(Host, "installed", classmethod(lambda cls: broken))
    assert lines()["SGLang names"][0] == "note"
    assert "more" in lines()["SGLang names"][1]


def test_the_command_shows_it() -> None:
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert any(item["name"] == "SGLang" for item in told["findings"])

"""Settings from variables and a file; what is unknown is refused with the closest name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from specdec_drafters.ngram import Ngram
from specdec_sglang.refusals import check_launch
from specdec_sglang.settings import Settings
from specdec_verifiers.match import Match
from specdec_verifiers.rejection import Rejection

from specdec.drafter import DrafterSpec
from specdec.errors import OptionError, UnknownPlugin
from specdec.testing import RandomTree


def test_defaults() -> None:
    assert Settings.read({}) == Settings(drafter="ngram", verifier="match", budget=8)


def test_variables_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "specdec.toml"
    file.write_text('[sglang]\ndrafter = "none"\nbudget = 5\n[sglang.drafter_options.ngram]\nmax_match = 8\n')
    settings = Settings.read({"CONFIG": str(file), "DRAFTER": "ngram", "CHECK": "1"})
    assert (settings.drafter, settings.budget) == ("ngram", 5)
    made = settings.make_drafter()
    assert isinstance(made, Ngram)
    assert made.max_match == 8


def test_options_as_json() -> None:
    made = Settings.read({"DRAFTER_OPTIONS": '{"ngram": {"min_match": 2}}'}).make_drafter()
    assert isinstance(made, Ngram)
    assert made.min_match == 2


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DRAFTR": "ngram"}, r"SPECDEC_DRAFTR .* Did you mean 'DRAFTER'"),
        ({"BUDGET": "many"}, "SPECDEC_BUDGET is a whole number"),
        ({"BUDGET": "0"}, "at least 1"),
        ({"DRAFTER_OPTIONS": "{"}, "not valid JSON"),
        ({"DRAFTER_OPTIONS": "[1]"}, "maps names to options"),
        ({"CONFIG": "/nowhere/specdec.toml"}, "cannot be read"),
    ],
)
def test_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Settings.read(environment)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sglang]\ndraft = 'ngram'\n", "setting 'draft' is not known .* Did you mean 'drafter'"),
        ("[engine]\n", r"no table \[sglang\] \(found: engine\)"),
        ("[sglang", "not valid TOML"),
    ],
)
def test_refused_files(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "specdec.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=words):
        Settings.read({"CONFIG": str(file)})


def test_an_unknown_drafter() -> None:
    with pytest.raises(UnknownPlugin, match="Did you mean 'ngram'"):
        Settings(drafter="ngrm").make_drafter()


def test_draft_model_path() -> None:
    settings = Settings(drafter="draft_model").with_draft_model("small")
    assert settings.drafter_options == {"draft_model": {"model": "small"}}
    named = Settings(drafter="draft_model", drafter_options={"draft_model": {"model": "mine", "dtype": "fp32"}})
    assert named.with_draft_model("small") == named
    assert Settings().with_draft_model(None) == Settings()
    with pytest.raises(OptionError, match="has no model"):
        Settings().with_draft_model("small")


class Tapped(Ngram):
    spec = DrafterSpec(taps=(1,))


def launch(**given: Any) -> SimpleNamespace:
    """A launch as SGLang resolves one, with everything else at its default."""
    usual = {
        "pp_size": 1,
        "enable_dp_attention": False,
        "disaggregation_mode": "null",
        "enable_lora": None,
        "lora_paths": None,
        "page_size": 1,
        "attention_backend": "flashinfer",
        "speculative_num_draft_tokens": 8,
    }
    return SimpleNamespace(**usual | given)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"pp_size": 2}, "--pp-size 2"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"lora_paths": ["x"]}, "--lora-paths"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk 4"),
        ({"speculative_num_draft_tokens": 0}, "at least 1; found 0"),
        ({"attention_backend": "torch_native"}, "--attention-backend torch_native"),
        ({"decode_attention_backend": "trtllm_mha"}, "--decode-attention-backend trtllm_mha"),
    ],
)
def test_launches_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        check_launch(launch(**given), Ngram(), Match(), hidden=False)


def test_launches_served() -> None:
    check_launch(launch(), Ngram(), Match(), hidden=False)
    check_launch(launch(), RandomTree(), Match(), hidden=False)
    check_launch(launch(page_size=16, attention_backend="fa3"), Ngram(), Match(), hidden=False)
    check_launch(launch(attention_backend=None), Tapped(), Match(), hidden=True)


def test_trees() -> None:
    with pytest.raises(OptionError, match="--page-size 16"):
        check_launch(launch(page_size=16), RandomTree(), Match(), hidden=False)
    with pytest.raises(OptionError, match="trees are verified with"):
        check_launch(launch(attention_backend="fa3"), RandomTree(), Match(), hidden=False)
    with pytest.raises(OptionError, match="takes chains only"):
        check_launch(launch(), RandomTree(), Rejection(), hidden=False)


def test_hidden_states() -> None:
    with pytest.raises(OptionError, match="SPECDEC_HIDDEN"):
        check_launch(launch(), Tapped(), Match(), hidden=False)
    with pytest.raises(OptionError, match="would copy them for nothing"):
        check_launch(launch(), Ngram(), Match(), hidden=True)

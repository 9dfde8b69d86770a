"""`specdec bench`: the report, resuming, and what it refuses."""

import gzip
import json

import pytest

from specdec.bench import measure as measuring

FEW = ("--max-tokens", 6, "--repeat", 2, "--temperatures", "0,0.7", "--dtype", "fp32")
FIELDS = {
    "drafter", "category", "temperature", "tokens_per_s", "tokens_per_s_all", "tau", "speedup_vs_none",
    "speedup_vs_transformers", "speedup_vs_counterpart", "tokens_equal", "first_divergence", "looping_share",
}  # fmt: skip


@pytest.fixture
def bench(run, model_folder, prompts_file):
    def call(*args):
        return run("bench", model_folder, "--prompts", prompts_file, *args)

    return call


def test_the_report_has_every_row_and_where_it_comes_from(bench, tmp_path):
    out = tmp_path / "deep" / "report.json"
    result = bench(*FEW, "--json", out, "--against", "transformers")
    assert result.exit_code == 0, result.stderr
    content = json.loads(out.read_text())
    assert set(content) >= {"command", "versions", "machine", "settings", "runs", "samples"}
    assert content["versions"]["torch"]
    assert content["machine"]["threads"] >= 1
    drafters = ["none", "ngram", "transformers", "transformers:prompt_lookup"]
    keys = [(run["temperature"], run["category"], run["drafter"]) for run in content["runs"]]
    assert keys == [(t, c, d) for t in (0, 0.7) for c in ("cats", "dogs", "all") for d in drafters]
    assert all(set(run) >= FIELDS for run in content["runs"])
    assert len(content["samples"]) == 2 * 2 * 4 * len(drafters)


def test_drafting_changes_no_token_and_transformers_agrees(bench, tmp_path):
    out = tmp_path / "report.json"
    bench(*FEW, "--json", out, "--against", "transformers")
    runs = json.loads(out.read_text())["runs"]
    assert all(run["tokens_equal"] for run in runs if run["drafter"] in ("none", "ngram"))
    assert all(run["tokens_equal"] for run in runs if run["drafter"] == "transformers" and run["temperature"] == 0)
    sampled = [run for run in runs if run["drafter"] == "transformers" and run["temperature"] > 0]
    assert [run["tokens_equal"] for run in sampled] == [None] * 3


def test_a_rule_that_draws_again_is_not_held_to_the_same_tokens(bench, tmp_path):
    out = tmp_path / "report.json"
    result = bench(*FEW, "--verifier", "rejection", "--policy", "fixed", "--json", out)
    assert result.exit_code == 0, result.stderr
    runs = json.loads(out.read_text())["runs"]
    equal = {run["temperature"]: run["tokens_equal"] for run in runs if run["drafter"] == "ngram"}
    assert equal == {0.0: True, 0.7: None}


def test_an_interrupted_run_goes_on_where_it_was(bench, tmp_path, monkeypatch):
    out, kept = tmp_path / "report.json", 5
    add, added = measuring.Store.add, []

    def planted(store, sample):
        if len(added) == kept:
            raise KeyboardInterrupt
        added.append(sample)
        add(store, sample)

    monkeypatch.setattr(measuring.Store, "add", planted)
    assert bench(*FEW, "--json", out).exit_code == 130
    assert not out.exists()
    monkeypatch.setattr(measuring.Store, "add", add)
    partial = tmp_path / "report.json.partial.jsonl"
    partial.write_text(partial.read_text() + '{"prompt": "cut o')
    result = bench(*FEW, "--json", out)
    assert result.exit_code == 0, result.stderr
    content = json.loads(out.read_text())
    assert content["samples_resumed"] == kept
    assert len(content["samples"]) == 2 * 2 * 4 * 2
    assert not partial.exists()


def test_samples_of_other_settings_are_set_aside(bench, tmp_path):
    out = tmp_path / "report.json"
    partial = tmp_path / "report.json.partial.jsonl"
    partial.write_text('{"settings": {"max_tokens": 99}}\n{"prompt": "one"}\n')
    bench(*FEW, "--json", out)
    assert json.loads(out.read_text())["samples_resumed"] == 0
    assert (tmp_path / "report.json.partial.jsonl.old").exists()


def test_limit_and_categories_choose_prompts(bench, tmp_path):
    out = tmp_path / "report.json"
    bench("--max-tokens", 4, "--repeat", 1, "--temperature", 0, "--limit", 1, "--categories", "dogs", "--json", out)
    content = json.loads(out.read_text())
    assert content["prompts"] == {"dogs": 1}
    assert {sample["prompt"] for sample in content["samples"]} == {"two"}


def test_a_dash_prints_the_report(bench):
    result = bench("--max-tokens", 4, "--repeat", 1, "--temperature", 0, "--limit", 1, "--json", "-")
    assert json.loads(result.stdout)["runs"]


def test_the_table_says_what_was_equal(bench):
    result = bench("--max-tokens", 6, "--repeat", 1, "--temperature", 0, "--raw", "--dtype", "fp32")
    assert result.exit_code == 0, result.stderr
    assert "x none" in result.stdout
    assert "yes" in result.stdout


def test_a_picture_is_written(bench, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bars.png"
    bench("--max-tokens", 4, "--repeat", 1, "--limit", 1, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "not an object"),
        ('{"text": "x"}', 'neither "prompt" nor'),
        ('{"prompt": " "}', "not text"),
        ('{"turns": [5]}', "not text"),
        ('{"prompt": "x", "category": 3}', "not a name"),
        ('{"prompt": "x", "id": "one"}', "used before"),
    ],
)
def test_a_broken_line_is_refused_by_file_line_and_reason(bench, prompts_file, line, reason):
    prompts_file.write_text(prompts_file.read_text() + line + "\n")
    result = bench(*FEW)
    assert result.exit_code == 2
    assert f"{prompts_file}, line 5" in result.stderr
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--against", "vllm"), "only 'transformers'"),
        (("--drafters", "ngrem"), "Did you mean 'ngram'"),
        (("--drafters", "draft_model"), "--draft-model"),
        (("--categories", "cat"), "Did you mean 'cats'"),
        (("--temperatures", "warm"), "--temperatures"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, args, said):
    result = bench(*args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_gzipped_humaneval_and_spec_bench_lines_are_read(tmp_path):
    from specdec.bench.prompts import read_prompts

    human = tmp_path / "HumanEval.jsonl.gz"
    with gzip.open(human, "wt") as file:
        file.write(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": ""}))
    [prompt] = read_prompts(human)
    assert (prompt.id, prompt.category) == ("HumanEval/0", "humaneval")
    spec = tmp_path / "question.jsonl"
    spec.write_text(json.dumps({"question_id": 81, "category": "writing", "turns": ["First.", "Second."]}))
    [prompt] = read_prompts(spec)
    assert (prompt.id, prompt.category, prompt.text) == ("81", "writing", "First.")

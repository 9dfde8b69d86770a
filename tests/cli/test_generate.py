"""`specdec generate`."""

import json

import pytest

QUIET = ("--max-tokens", "12")


def test_text_goes_to_stdout_and_counts_to_stderr(run, model_folder):
    result = run("generate", model_folder, "the cat", *QUIET)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip()
    assert "tokens/s" in result.stderr
    assert "tokens/s" not in result.stdout


def test_json_has_the_completion_with_its_stats(run, model_folder):
    result = run("generate", model_folder, "the cat", "--json", "--logprobs", 2, *QUIET)
    content = json.loads(result.stdout)
    [done] = content["completions"]
    assert done["prompt"] == "the cat"
    assert content["lossless"] is True
    assert len(done["logprobs"]) == len(done["tokens"]) == 1 + done["stats"]["emitted"]
    assert done["stats"]["tau"] >= 1


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_seed_fixes_the_text_whatever_the_drafter(run, model_folder, drafter):
    def tokens(name):
        common = ("--temperature", 0.9, "--seed", 7, "--json", "--dtype", "fp32", *QUIET)
        result = run("generate", model_folder, "the cat", "--drafter", name, *common)
        return json.loads(result.stdout)["completions"][0]["tokens"]

    assert tokens(drafter) == tokens("none")


def test_several_completions_of_several_prompts(run, model_folder):
    args = ("--n", 2, "--temperature", 1, "--seed", 1, "--no-chat")
    result = run("generate", model_folder, "the cat", "the dog", *args, *QUIET)
    assert result.exit_code == 0, result.stderr
    assert [f"prompt {i}, completion {j}" in result.stdout for i in (1, 2) for j in (1, 2)] == [True] * 4


def test_a_dash_reads_stdin(run, model_folder):
    result = run("generate", model_folder, "-", "--json", *QUIET, stdin="the mat")
    assert json.loads(result.stdout)["completions"][0]["prompt"] == "the mat"


def test_chat_and_plain_text_differ_in_the_prompt(run, model_folder):
    def prompt_tokens(flag):
        result = run("generate", model_folder, "the cat", flag, "--json", *QUIET)
        return json.loads(result.stdout)["completions"][0]["stats"]["prompt_tokens"]

    assert prompt_tokens("--chat") == prompt_tokens("--no-chat") + 2


def test_a_draft_model_is_used_when_it_is_named(run, model_folder):
    result = run("generate", model_folder, "the cat", "--draft-model", model_folder, "--json", *QUIET)
    content = json.loads(result.stdout)
    assert content["drafter"] == "draft_model"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--drafter", "ngrem"), "Did you mean 'ngram'"),
        (("--option", "ngram.max_macth=8"), "max_match"),
        (("--option", "ngram"), "NAME.KEY=VALUE"),
        (("--option", "other.key=1"), "the parts in use are"),
        (("--temperature", "-1"), "temperature"),
        (("--draft-model", "x", "--drafter", "ngram"), "--draft-model"),
        (("--json-schema", "@nowhere.json"), "cannot be read"),
        (("--dtype", "int3"), "dtype"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(run, model_folder, args, said):
    result = run("generate", model_folder, "the cat", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr + result.stdout


def test_a_debug_variable_shows_the_traceback(run, model_folder, monkeypatch):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    result = run("generate", model_folder, "the cat", "--drafter", "ngrem")
    assert type(result.exception).__name__ == "UnknownPlugin"


def test_an_unknown_model_is_named(run):
    result = run("generate", "smolm2", "the cat")
    assert result.exit_code == 2
    assert "'smolm2'" in result.stderr


def test_an_interruption_exits_with_130(run, model_folder, monkeypatch):
    from specdec.engine import Engine

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "load", interrupted)
    assert run("generate", model_folder, "the cat").exit_code == 130

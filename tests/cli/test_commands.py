"""The application as a whole, `plugins`, `doctor`, and the demo on a small model."""

import json
import subprocess
import sys

import pytest

import specdec


@pytest.mark.parametrize("command", [(), ("demo",), ("generate",), ("bench",), ("plugins",), ("doctor",)])
def test_every_help_text_has_examples(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "specdec " in result.stdout


def test_help_needs_no_torch():
    code = "import sys, specdec.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_printed(run):
    assert run("--version").stdout.strip() == specdec.__version__


def test_plugins_names_every_part(run):
    found = json.loads(run("plugins", "--json").stdout)["plugins"]
    names = {(item["kind"], item["name"]) for item in found}
    assert names >= {("drafter", "none"), ("drafter", "ngram"), ("verifier", "match"), ("target", "hf")}
    lossy = {item["name"] for item in found if not item["lossless"]}
    assert lossy == {"typical"}
    assert "LOSSY" in run("plugins").stdout


def test_plugins_shows_what_cannot_be_loaded(run):
    from specdec import registry

    plugin = registry.Plugin(registry.DRAFTERS, "broken", "someone", lambda: (_ for _ in ()).throw(ImportError("gone")))
    registry._local.setdefault((registry.DRAFTERS, "broken"), []).append(plugin)
    try:
        found = json.loads(run("plugins", "--json").stdout)["plugins"]
    finally:
        registry._local.pop((registry.DRAFTERS, "broken"))
    [broken] = [item for item in found if item["name"] == "broken"]
    assert broken["usable"] is False
    assert "gone" in broken["problem"]


def test_doctor_finds_what_decoding_needs(run):
    result = run("doctor", "--json")
    content = json.loads(result.stdout)
    assert content["ok"] is (result.exit_code == 0)
    assert {"python", "torch", "transformers", "plug-ins", "smollm2"} <= {item["name"] for item in content["findings"]}


def test_doctor_exits_with_1_when_something_is_missing(run, monkeypatch):
    import specdec.bench.machine as machine

    monkeypatch.setattr(machine, "installed", lambda package: None)
    result = run("doctor")
    assert result.exit_code == 1
    assert "missing" in result.stdout


def test_the_demo_compares_and_proves(run, model_folder):
    result = run("demo", "--model", model_folder, "--tokens", 8, "--threads", 1, "--json")
    assert result.exit_code == 0, result.stderr
    content = json.loads(result.stdout)
    assert content["fp32"]["tokens_equal"] is True
    assert {"none", "ngram", "transformers"} <= {run["drafter"] for run in content["runs"]}


def test_the_demo_streams_and_explains(run, model_folder):
    result = run("demo", "--model", model_folder, "--tokens", 8, "--threads", 1)
    assert result.exit_code == 0, result.stderr
    assert "streamed" in result.stdout
    assert "every token is the same" in result.stdout

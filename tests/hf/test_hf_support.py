"""Models that cannot be run exactly are refused by name, with the reason."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tiny_models as models
import torch
import transformers

from specdec.errors import MissingExtra, UnsupportedModel
from specdec.hf import HFTarget, load, support

_SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_REFUSED = [
    (transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2), "'mamba'.*recurrent"),
    (transformers.JambaConfig(**_SMALL), "'jamba'.*recurrent"),
    (transformers.Qwen3NextConfig(**_SMALL), "'qwen3_next'.*recurrent"),
    (transformers.RecurrentGemmaConfig(vocab_size=97, hidden_size=32), "'recurrent_gemma'.*recurrent"),
    (transformers.Lfm2Config(**_SMALL, layer_types=["conv", "full_attention"] * 2), "'lfm2'.*layers of type 'conv'"),
    (transformers.Llama4TextConfig(**_SMALL), "'llama4_text'.*'chunked_attention'"),
    (transformers.T5Config(vocab_size=97), "'t5'.*encoder-decoder"),
    (transformers.Gemma3TextConfig(**_SMALL, use_bidirectional_attention=True), "'gemma3_text'.*looks ahead"),
]


@pytest.mark.parametrize(("config", "message"), _REFUSED, ids=lambda value: getattr(value, "model_type", ""))
def test_a_config_is_refused_by_its_name(config, message):
    with pytest.raises(UnsupportedModel, match=message):
        support.check_config(config)


def test_a_folder_is_refused_before_its_weights_are_read(tmp_path):
    """The folder has no weights at all, so reading them would fail with another error."""
    transformers.MambaConfig(vocab_size=97).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="'mamba'"):
        HFTarget.load(tmp_path)


def test_attention_sinks_are_refused():
    config = transformers.GptOssConfig(**_SMALL, head_dim=8, num_local_experts=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModel, match=r"'gpt_oss'.*sinks"):
        HFTarget(model, slots=1, max_len=32)


def test_a_model_without_position_ids_is_refused():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModel, match=r"'bloom'.*position_ids"):
        HFTarget(model, slots=1, max_len=32)


def test_rotary_tables_that_change_with_length_are_refused_past_the_trained_length():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = transformers.LlamaConfig(**_SMALL, max_position_embeddings=64, rope_parameters=rope)
    support.check_rope(config, 64)
    with pytest.raises(UnsupportedModel, match=r"'dynamic'.*past 64 positions and max_len is 65"):
        support.check_rope(config, 65)


def test_a_model_whose_backbone_says_something_else_is_refused(monkeypatch):
    """The check at load: a planted error in the attention of the slabs must not go unseen."""
    from specdec.hf import modules

    def wrong(module, query, key, value, *args, **kwargs):
        modules._current.get().attended.add(module.layer_idx)
        return torch.zeros_like(query).transpose(1, 2), None

    monkeypatch.setattr(modules, "_attention", wrong)
    with pytest.raises(UnsupportedModel, match="logits differ by"):
        HFTarget(models.model("llama"), slots=1, max_len=32, backbone="transformers")


def test_layers_that_bypass_the_attention_interface_are_refused(monkeypatch):
    from specdec.hf import modules

    whole = modules._attention

    def forgetful(module, *args, **kwargs):
        out = whole(module, *args, **kwargs)
        modules._current.get().attended.discard(1)
        return out

    monkeypatch.setattr(modules, "_attention", forgetful)
    with pytest.raises(UnsupportedModel, match="1 of 3 layers bypass"):
        HFTarget(models.model("llama"), slots=1, max_len=32, backbone="transformers")


def test_the_package_is_imported_without_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import specdec.hf\n"
        "from specdec.errors import MissingExtra\n"
        "try: specdec.hf.HFTarget.load('smollm2')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'specdec-kit[hf]'" in done.stdout


def test_a_target_needs_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="transformers"):
        load.require_transformers()

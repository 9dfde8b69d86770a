"""A random Llama of two layers with a tokenizer of its own, as a folder; nothing is downloaded."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

_TEXT = ["the cat sat on the mat and the dog sat on the log", "name three rivers and one hill", "a b c d e f g h"]
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """The folder of a random model; its tokenizer splits text into bytes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("model") / "tiny"
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    special = ["<eos>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(
        _TEXT, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>")
    tokenizer.chat_template = _TEMPLATE
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=fast.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def prompts_file(tmp_path) -> Path:
    """Four prompts of two categories."""
    lines = [
        {"prompt": "the cat sat on the mat", "category": "cats", "id": "one"},
        {"prompt": "the dog sat on the log and the cat", "category": "dogs", "id": "two"},
        {"question_id": 3, "turns": ["name three rivers", "and a hill"], "category": "cats"},
        {"prompt": "a b c d a b c d a b", "category": "dogs", "id": "four"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def run():
    """Calls the command line; the result has exit_code, stdout and stderr."""
    from specdec.cli.app import app

    def call(*args, stdin: str | None = None):
        return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)

    return call

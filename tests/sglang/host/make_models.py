"""Small random models with a small tokenizer, for the plumbing of a server, written into the folder that is named."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_VOCAB = 512
_TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on this project's own text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = [path.read_text() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=_TEMPLATE
    )


def make(folder: Path, seed: int, layers: int, hidden: int, spread: float) -> None:
    """A Llama with random weights; a small `spread` makes flat distributions, a large one makes loops."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=_VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        initializer_range=spread,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    make(out / "target", 0, layers=4, hidden=128, spread=0.08)
    make(out / "draft", 0, layers=1, hidden=128, spread=0.08)

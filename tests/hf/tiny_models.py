"""Tiny random models of several families, with weights large enough that a wrong mask or position shows."""

from __future__ import annotations

from functools import cache

import torch
import transformers
from torch import Tensor

from specdec.types import Draft

VOCAB = 97
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 7,
    "pad_token_id": None,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_SHAPE),
    "llama_tied_scaled": lambda: transformers.LlamaConfig(
        **_SHAPE,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    ),
    "qwen2": lambda: transformers.Qwen2Config(**_SHAPE),
    "qwen2_sliding": lambda: transformers.Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=8, layer_types=_MIXED
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE),
    "mistral": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **_SHAPE, sliding_window=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_SHAPE, sliding_window=8, layer_types=_MIXED),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=128, initializer_range=0.3,
        bos_token_id=None, eos_token_id=7,
    ),
    "granite": lambda: transformers.GraniteConfig(**_SHAPE, logits_scaling=3.0, attention_multiplier=0.3),
}  # fmt: skip
#: Every family with every backbone that runs it.
CASES = [(name, "transformers") for name in _CONFIGS] + [
    (name, "fused") for name in ("llama", "llama_tied_scaled", "qwen2", "qwen2_sliding", "qwen3", "mistral")
]


@cache
def model(name: str) -> transformers.PreTrainedModel:
    """The model of that family: float32, the same in every test; nobody may change it."""
    torch.manual_seed(20)
    built = transformers.AutoModelForCausalLM.from_config(
        _CONFIGS[name](), dtype=torch.float32, attn_implementation="eager"
    )
    for parameter in built.parameters():  # norms and biases start as ones and zeros, which would hide their loss
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return built.eval()


@torch.no_grad()
def plain(name: str, tokens: Tensor) -> Tensor:
    """The logits [T, V] after each of tokens [T], as transformers alone computes them, without a cache."""
    return model(name)(input_ids=tokens[None], use_cache=False).logits[0]


def prompt(length: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator)


def random_tree(rows: int, nodes: int, seed: int) -> Draft:
    """Rows of random trees, the last node of every second row unused."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, nodes), generator=generator)
    parents = torch.stack(
        [torch.tensor([-1] + [int(torch.randint(0, i, (), generator=generator)) for i in range(1, nodes)])] * rows
    )
    for row in range(1, rows):
        parents[row, 1:] = (parents[row, 1:] + row) % torch.arange(1, nodes)
    parents[::2, -1] = -1
    tokens[::2, -1] = -1
    return Draft(tokens, parents)


def path_tokens(draft: Draft, row: int, node: int) -> list[int]:
    """The tokens from the anchor to a node."""
    tokens: list[int] = []
    while node >= 0:
        tokens.append(int(draft.tokens[row, node]))
        node = int(draft.parents[row, node])
    return tokens[::-1]

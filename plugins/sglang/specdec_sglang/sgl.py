"""Every name of SGLang that the plug-in uses, imported when it is first read; no other module imports SGLang.

The command line's process and the detokeniser load the plug-in too, and need none of the model's code. What is
expected of each name stands in `host`.
"""

from importlib import import_module
from typing import Any

NAMES = {
    "BaseSpecWorker": "srt.speculative.base_spec_worker",
    "CaptureHiddenMode": "srt.model_executor.forward_batch_info",
    "CustomSpecAlgo": "srt.speculative.spec_registry",
    "ForwardMode": "srt.model_executor.forward_batch_info",
    "FutureMap": "srt.managers.overlap_utils",
    "GenerationBatchResult": "srt.managers.utils",
    "GrammarTree": "srt.speculative.spec_utils",
    "HookRegistry": "srt.plugins.hook_registry",
    "HookType": "srt.plugins.hook_registry",
    "NgramVerifyInput": "srt.speculative.ngram_info",
    "SpeculativeAlgorithm": "srt.speculative.spec_info",
    "build_grammar_vocab_mask": "srt.speculative.spec_utils",
    "compute_spec_logprobs": "srt.layers.logprob_processor",
    "get_parallel": "srt.runtime_context",
    "get_spec": "srt.runtime_context",
    "mambaish_config": "srt.configs.hybrid_arch",
    "move_accept_tokens_to_target_kvcache": "srt.speculative.spec_utils",
    "record_stream_for_v2_verify": "srt.speculative.spec_utils",
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"specdec_sglang.sgl has no {name!r}; names of SGLang are listed there")
    value = getattr(import_module(f"sglang.{NAMES[name]}"), name)
    globals()[name] = value
    return value

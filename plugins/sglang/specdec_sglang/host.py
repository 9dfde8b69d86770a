"""What the plug-in expects of SGLang, name by name, and whether the installed one fits. Imports no SGLang.

The check parses the installed sources, so it costs no import, needs no GPU, and finds a renamed method before the
scheduler would.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

#: Versions the whole test set ran on.
KNOWN_GOOD = ("0.5.23",)


@dataclass(frozen=True, slots=True)
class Expected:
    """A name in a module of SGLang.

    name is "function", "Class" or "Class.method"; takes: parameters it is called with; has: fields a class has, by
    annotation, assignment in the class body, or `self.x = ...`.
    """

    module: str
    name: str
    takes: tuple[str, ...] = ()
    has: tuple[str, ...] = ()


_BATCH = (
    "reqs", "req_pool_indices", "req_pool_indices_cpu", "seq_lens", "seq_lens_cpu", "sampling_info", "has_grammar",
    "return_logprob", "forward_mode", "input_ids", "out_cache_loc", "spec_info", "prefix_lens",
    "extend_lens", "is_prefill_only", "return_hidden_states",
)  # fmt: skip
_REQ = ("rid", "origin_input_ids", "output_ids", "sampling_params", "session_id", "tokenizer", "eos_token_ids")
_PARAMS = (
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "min_new_tokens", "stop_token_ids", "logit_bias", "sampling_seed", "custom_params",
)  # fmt: skip
_RESULT = (
    "logits_output", "next_token_ids", "can_run_cuda_graph", "accept_lens", "new_seq_lens", "next_draft_input",
    "speculative_num_draft_tokens",
)  # fmt: skip
_VERIFY = (
    "draft_token", "custom_mask", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling",
    "draft_token_num", "new_seq_lens", "accept_tokens", "accept_lens",
)  # fmt: skip
_SPEC = "srt.speculative"

EXPECTED: tuple[Expected, ...] = (
    Expected(
        f"{_SPEC}.spec_info",
        "SpeculativeAlgorithm.register",
        ("name", "supports_overlap", "validate_server_args", "spec_class"),
    ),
    Expected(
        f"{_SPEC}.spec_registry",
        "CustomSpecAlgo.__init__",
        ("name", "factory", "supports_overlap", "validate_server_args"),
    ),
    Expected(f"{_SPEC}.spec_registry", "CustomSpecAlgo.handle_server_args", ("server_args",)),
    Expected(
        f"{_SPEC}.base_spec_worker",
        "BaseSpecWorker.alloc_memory_pool",
        ("memory_pool_config", "req_to_token_pool", "token_to_kv_pool_allocator"),
    ),
    Expected(
        f"{_SPEC}.base_spec_worker",
        "BaseSpecWorker.on_verify_complete_cpu",
        ("num_correct_drafts_per_req", "batch_size"),
    ),
    Expected(f"{_SPEC}.base_spec_worker", "BaseSpecWorker.clear_cache_pool"),
    Expected(f"{_SPEC}.base_spec_worker", "BaseSpecWorker.draft_worker"),
    Expected(f"{_SPEC}.base_spec_worker", "BaseSpecWorker.target_worker"),
    Expected(f"{_SPEC}.ngram_info", "NgramVerifyInput.__init__", _VERIFY),
    Expected(
        f"{_SPEC}.spec_utils",
        "GrammarTree.from_device",
        ("retrieve_next_token", "retrieve_next_sibling", "draft_token"),
    ),
    Expected(f"{_SPEC}.spec_utils", "build_grammar_vocab_mask", ("reqs", "tree", "sampling_info", "device", "barrier")),
    Expected(
        f"{_SPEC}.spec_utils",
        "move_accept_tokens_to_target_kvcache",
        ("batch", "accept_index", "num_correct_drafts", "token_to_kv_pool_allocator"),
    ),
    Expected(f"{_SPEC}.spec_utils", "record_stream_for_v2_verify", ("batch", "verify_input", "fwd_stream")),
    Expected(
        "srt.layers.logprob_processor", "compute_spec_logprobs", ("batch", "logits_output", "predict", "accept_index")
    ),
    Expected(
        "srt.managers.overlap_utils",
        "FutureMap.__init__",
        ("device", "spec_algo", "req_to_token_pool", "needs_cpu_seq_lens", "needs_confidence_relay"),
    ),
    Expected("srt.managers.overlap_utils", "RelayPayload.from_ngram", ("draft_input",)),
    Expected("srt.managers.utils", "GenerationBatchResult", has=_RESULT),
    Expected("srt.managers.schedule_batch", "ScheduleBatch", has=_BATCH),
    Expected("srt.managers.schedule_batch", "Req", has=_REQ),
    Expected(
        "srt.managers.tp_worker",
        "TpModelWorker.forward_batch_generation",
        ("batch", "pp_proxy_tensors", "is_verify", "capture_hidden_mode"),
    ),
    Expected("srt.managers.tp_worker", "BaseTpWorker.get_memory_pool"),
    Expected("srt.model_executor.model_runner", "ModelRunner._preprocess_logits", ("logits_output", "sampling_info")),
    Expected("srt.model_executor.forward_batch_info", "CaptureHiddenMode", has=("NULL", "LAST", "FULL")),
    Expected("srt.model_executor.forward_batch_info", "ForwardMode", has=("TARGET_VERIFY", "DECODE")),
    Expected(
        "srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner.get_spec_info", ("num_tokens",)
    ),
    Expected(
        "srt.sampling.sampling_batch_info",
        "SamplingBatchInfo",
        has=("is_all_greedy", "has_custom_logit_processor", "custom_logit_processor", "custom_params"),
    ),
    Expected("srt.sampling.sampling_batch_info", "ProcessorEntry", has=("processor", "rows")),
    Expected("srt.sampling.sampling_params", "SamplingParams", has=_PARAMS),
    Expected("srt.configs.hybrid_arch", "mambaish_config", ("model_config",)),
    Expected("srt.runtime_context", "get_parallel"),
    Expected("srt.runtime_context", "get_spec"),
    Expected("srt.plugins.hook_registry", "HookRegistry.register", ("target", "hook", "hook_type")),
    Expected("srt.plugins.hook_registry", "HookType", has=("AFTER",)),
)


@dataclass(frozen=True)
class Host:
    """An installed SGLang, as its sources say; root is the package's folder."""

    root: Path

    @classmethod
    def installed(cls) -> Host | None:
        """The SGLang of this environment, not imported; None where there is none."""
        found = find_spec("sglang")
        where = list(found.submodule_search_locations or ()) if found else []
        return cls(Path(where[0])) if where else None

    @cached_property
    def version(self) -> str:
        """What its metadata says."""
        try:
            return version("sglang")
        except PackageNotFoundError:
            return "unknown"

    def differences(self) -> list[str]:
        """What is not as expected, one sentence each; empty where the plug-in fits."""
        parsed: dict[str, ast.Module | None] = {}
        found: list[str] = []
        for item in EXPECTED:
            if item.module not in parsed:
                parsed[item.module] = self._parse(item.module)
            found += _compare(item, parsed[item.module])
        return found

    def refusal(self) -> str | None:
        """Why this host is not served, or None."""
        differences = self.differences()
        if not differences:
            return None
        listed = "\n  ".join(differences)
        return (
            f"specdec does not fit this SGLang ({self.version}); of {len(EXPECTED)} names these differ:\n  {listed}"
            f"\nKnown to work: {', '.join(KNOWN_GOOD)}. Install one of them, or start without "
            "--speculative-algorithm SPECDEC."
        )

    def _parse(self, module: str) -> ast.Module | None:
        path = self.root.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None


def _compare(item: Expected, tree: ast.Module | None) -> Iterator[str]:
    where = f"sglang.{item.module}"
    if tree is None:
        yield f"{where} is not there"
        return
    outer, _, inner = item.name.partition(".")
    node = _named(tree.body, outer)
    if node is not None and inner:
        node = _named(node.body, inner) if isinstance(node, ast.ClassDef) else None
    if node is None:
        yield f"{where} has no {item.name}"
    elif isinstance(node, ast.ClassDef):
        for name in sorted(set(item.has) - _fields(node)):
            yield f"{where}.{item.name} has no {name}"
    else:
        known = _parameters(node)
        for name in item.takes:
            if name not in known:
                yield f"{where}.{item.name} takes no {name} (it takes {', '.join(sorted(known)) or 'nothing'})"


_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _named(body: list[ast.stmt], name: str) -> _Def | None:
    """The last definition of that name, as an import would see it."""
    found = [node for node in body if isinstance(node, _Def) and node.name == name]
    return found[-1] if found else None


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = node.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _fields(node: ast.ClassDef) -> set[str]:
    """Names a class body annotates, assigns or defines, and those its methods assign to self."""
    found: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef):
            found.add(item.name)
        targets: list[ast.expr] = []
        if isinstance(item, ast.Assign):
            targets = item.targets
        elif isinstance(item, ast.AnnAssign):
            targets = [item.target]
        for target in targets:
            if isinstance(target, ast.Name):
                found.add(target.id)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.add(target.attr)
    return found

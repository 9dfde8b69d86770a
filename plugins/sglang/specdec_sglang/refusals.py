"""What a launch cannot have, refused by name before the server loads a model."""

from __future__ import annotations

from typing import Any

from specdec.drafter import Drafter
from specdec.errors import OptionError
from specdec.verifier import Verifier

#: Attention backends whose verification reads a tree mask; chains also pass where it is ignored.
TREE_BACKENDS = ("flashinfer", "triton", "intel_amx")
CHAIN_BACKENDS = (*TREE_BACKENDS, "fa3")

#: Launch option, the value that is served, and what to do about another one.
_SERVED: tuple[tuple[str, Any, str], ...] = (
    ("pp_size", 1, "drafts and verdicts are not passed between pipeline stages. Use tensor parallelism"),
    ("enable_dp_attention", False, "ranks of one batch would verify different rows. Leave it out"),
    ("disaggregation_mode", "null", "a decode server has not seen the prompt a drafter reads. Serve both on one"),
    ("enable_lora", False, "drafts are not kept apart by adapter. Leave LoRA out"),
    ("lora_paths", None, "drafts are not kept apart by adapter. Leave LoRA out"),
    ("enable_two_batch_overlap", False, "a verification is not split in two. Leave it out"),
    ("enable_pdmux", False, "prefill and verification share buffers. Leave it out"),
    ("enable_watermark", False, "a watermark is not applied node by node. Leave it out"),
    ("speculative_adaptive", False, "the width is fixed at launch. Leave it out"),
    ("speculative_num_steps", None, "a draft is bounded by --speculative-num-draft-tokens alone. Leave it out"),
    ("speculative_eagle_topk", None, "the drafter decides how a draft branches. Leave it out"),
)


def check_launch(args: Any, drafter: Drafter, verifier: Verifier, *, hidden: bool) -> None:
    """Raises OptionError for the first launch option that cannot be served.

    args: the server's resolved arguments. hidden: the algorithm that hands hidden states to drafters was chosen.
    """
    for name, served, reason in _SERVED:
        found = getattr(args, name, served)
        if found != served and (found or served):
            flag = "--" + name.replace("_", "-")
            raise OptionError(f"specdec was asked to serve with {flag} {found}; {reason}.")
    _check_parts(args, drafter, verifier)
    _check_taps(drafter, hidden=hidden)
    _check_attention(args, drafter)


def _check_parts(args: Any, drafter: Drafter, verifier: Verifier) -> None:
    width = getattr(args, "speculative_num_draft_tokens", None)
    if width is not None and width < 1:
        raise OptionError(f"--speculative-num-draft-tokens counts the anchor and is at least 1; found {width}.")
    if verifier.chains_only and drafter.spec.trees:
        raise OptionError(
            f"the rule {type(verifier).__name__} takes chains only; {type(drafter).__name__} may draft trees. "
            "Set SPECDEC_VERIFIER=match."
        )


def _check_taps(drafter: Drafter, *, hidden: bool) -> None:
    if drafter.spec.taps and not hidden:
        raise OptionError(
            f"{type(drafter).__name__} reads hidden states of layers {list(drafter.spec.taps)}; "
            "SPECDEC hands over none. Start with --speculative-algorithm SPECDEC_HIDDEN."
        )
    if hidden and not drafter.spec.taps:
        raise OptionError(
            f"{type(drafter).__name__} reads no hidden states; SPECDEC_HIDDEN would copy them for nothing. "
            "Start with --speculative-algorithm SPECDEC."
        )


def _check_attention(args: Any, drafter: Drafter) -> None:
    """Backends: what verifies a tree, or at least a chain. None is the server's own choice, checked when it is made."""
    trees = drafter.spec.trees
    known = TREE_BACKENDS if trees else CHAIN_BACKENDS
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        found = getattr(args, name, None)
        if found is not None and found not in known:
            kind = "trees" if trees else "drafts"
            raise OptionError(
                f"--{name.replace('_', '-')} {found} was chosen; {kind} are verified with {', '.join(known)}. "
                "Choose one of them."
            )
    page = getattr(args, "page_size", None) or 1
    if trees and page > 1:
        raise OptionError(
            f"--page-size {page} was chosen and {type(drafter).__name__} may draft trees, whose kept path is moved "
            "slot by slot. Use --page-size 1, or a drafter of chains."
        )

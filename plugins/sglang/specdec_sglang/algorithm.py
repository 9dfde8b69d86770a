"""The algorithm as the server sees it: which of its branches apply, and what a launch needs."""

from __future__ import annotations

from functools import partial
from typing import Any

from specdec.errors import ContractError
from specdec_sglang import settings, sgl
from specdec_sglang.host import KNOWN_GOOD
from specdec_sglang.plugin import HIDDEN, TOKENS
from specdec_sglang.refusals import check_launch

_ROWS = 48


class SpecdecAlgorithm(sgl.CustomSpecAlgo):  # type: ignore[misc]  # SGLang is not typed
    """Verifies as the server's n-gram algorithm does: a mask over nodes, and no drafter's cache beside the target's."""

    def is_ngram(self) -> bool:
        """True: graphs are captured with a tree mask, and accepted tokens are relayed between overlapped steps."""
        return True

    def has_draft_kv(self) -> bool:
        """False: a step writes its nodes once."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """False: nothing crosses servers."""
        return False

    def need_topk(self) -> bool:
        """False: nothing but accepted tokens is relayed."""
        return False

    def get_platform_worker_cls(self) -> None:
        """None: the worker is the same on all platforms."""
        return

    def create_future_map(self, device: Any, req_to_token_pool: Any, *rest: Any, **options: Any) -> Any:
        """The server's own relay between overlapped steps."""
        return sgl.FutureMap(device, self, req_to_token_pool, *rest, **options)

    def build_disagg_draft_input(self, *args: Any, **options: Any) -> None:
        """None: serving in two places is refused at launch."""
        return

    def handle_server_args(self, args: Any) -> None:
        """Fill in what a launch leaves open. Writes `args`."""
        if args.speculative_num_draft_tokens is None:
            args.speculative_num_draft_tokens = settings.current().budget
        args.speculative_num_steps = max(1, args.speculative_num_draft_tokens - 1)
        args.speculative_eagle_topk = 1
        args.enable_mixed_chunk = False
        if args.max_running_requests is None:
            args.max_running_requests = _ROWS


def check(args: Any, *, hidden: bool) -> None:
    """Raises OptionError where the launch cannot be served as asked."""
    chosen = settings.current().with_draft_model(args.speculative_draft_model_path)
    check_launch(args, chosen.make_drafter(), chosen.make_verifier(), hidden=hidden)


def worker(args: Any, **_: Any) -> Any:
    """The worker's class, bound to the settings; SGLang calls it with what it has then."""
    from specdec_sglang.worker import SpecdecWorker

    chosen = settings.current().with_draft_model(args.speculative_draft_model_path)

    def build(*, target_worker: Any, **_: Any) -> SpecdecWorker:
        return SpecdecWorker(chosen, target_worker)

    return build


def missing_methods(cls: type) -> list[str]:
    """Methods of the server's own algorithms that `cls` lacks: the server would call them and fail."""
    theirs = {name for name, value in vars(sgl.SpeculativeAlgorithm).items() if callable(value)}
    ours = set(dir(cls))
    built_in = {"from_string", "register"}
    return sorted(name for name in theirs - ours - built_in if not name.startswith("_"))


def register() -> None:
    """Make both names known to the server. Raises ContractError where the server asks more of an algorithm."""
    missing = missing_methods(SpecdecAlgorithm)
    if missing:
        raise ContractError(
            f"this SGLang calls {', '.join(missing)} on an algorithm; specdec answers none of them. "
            f"Known to work: {', '.join(KNOWN_GOOD)}."
        )
    for name in (TOKENS, HIDDEN):
        sgl.SpeculativeAlgorithm.register(
            name,
            supports_overlap=True,
            validate_server_args=partial(check, hidden=name == HIDDEN),
            spec_class=SpecdecAlgorithm,
        )(worker)
    _capture_hidden_states()


def _capture_hidden_states() -> None:
    """Graphs of the second name keep hidden states: the server captures n-gram verification without."""

    def keep(result: Any, runner: Any, *_: Any, **__: Any) -> Any:
        if result is not None and getattr(runner.model_runner.spec_algorithm, "name", "") == HIDDEN:
            result.capture_hidden_mode = sgl.CaptureHiddenMode.FULL
        return result

    sgl.HookRegistry.register(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info",
        keep,
        sgl.HookType.AFTER,
    )

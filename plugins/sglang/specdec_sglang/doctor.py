"""What `specdec doctor` says of SGLang: whether the plug-in is found, fits, and what it would serve with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points

from specdec import config
from specdec.errors import SpecdecError
from specdec_sglang import settings
from specdec_sglang.host import KNOWN_GOOD, Host
from specdec_sglang.plugin import HIDDEN, TOKENS
from specdec_sglang.refusals import CHAIN_BACKENDS, TREE_BACKENDS

_GROUP, _NAME = "sglang.srt.plugins", "specdec"

#: What was looked at, "ok" or "note", what was found, what to do.
Line = tuple[str, str, str, str]


def findings() -> Iterator[Line]:
    """One line for each thing that a launch depends on."""
    host = Host.installed()
    if host is None:
        yield "SGLang", "note", "not installed", "the plug-in has no host here; pip install 'specdec-kit[sglang]'"
        return
    known = host.version in KNOWN_GOOD
    yield "SGLang", "ok" if known else "note", host.version, "" if known else f"tested with {', '.join(KNOWN_GOOD)}"
    yield _discovery()
    yield _contract(host)
    yield _chosen()


def _discovery() -> Line:
    """Whether SGLang would find and run the entry point."""
    found = [point.name for point in entry_points(group=_GROUP)]
    allowed = os.environ.get("SGLANG_PLUGINS")
    if _NAME not in found:
        return (
            "SGLang plug-in",
            "note",
            f"entry points of {_GROUP}: {', '.join(found) or 'none'}",
            "reinstall specdec-kit",
        )
    if config.env("DISABLE") not in (None, "0"):
        return "SGLang plug-in", "note", "switched off by SPECDEC_DISABLE", "unset it"
    if allowed is not None and _NAME not in [item.strip() for item in allowed.split(",")]:
        return "SGLang plug-in", "note", f"left out by SGLANG_PLUGINS={allowed}", f"add {_NAME} to it, or unset it"
    return "SGLang plug-in", "ok", f"found; --speculative-algorithm {TOKENS} or {HIDDEN}", ""


def _contract(host: Host) -> Line:
    differences = host.differences()
    if differences:
        more = f" and {len(differences) - 1} more" if differences[1:] else ""
        return "SGLang names", "note", f"{differences[0]}{more}", f"install SGLang {KNOWN_GOOD[-1]}"
    trees, chains = ", ".join(TREE_BACKENDS), ", ".join(CHAIN_BACKENDS)
    return "SGLang names", "ok", f"all as expected; attention for trees: {trees}; for chains: {chains}", ""


def _chosen() -> Line:
    """What a launch would draft with; the parts are made, no model is loaded."""
    try:
        chosen = settings.current()
        chosen.make_drafter()
        chosen.make_verifier()
    except SpecdecError as error:
        return "SGLang settings", "note", str(error), "a launch would be refused"
    said = f"drafter {chosen.drafter}, rule {chosen.verifier}, budget {chosen.budget}"
    return "SGLang settings", "ok", said, ""

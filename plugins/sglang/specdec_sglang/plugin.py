"""The entry point: SGLang calls `register` in each of its processes before it reads its arguments."""

from __future__ import annotations

import logging

from specdec import config
from specdec.errors import OptionError
from specdec_sglang import sgl
from specdec_sglang.host import Host

logger = logging.getLogger(__name__)

#: Drafters that need tokens only, and those that read hidden states of the target.
TOKENS, HIDDEN = "SPECDEC", "SPECDEC_HIDDEN"


def register() -> None:
    """Make SPECDEC and SPECDEC_HIDDEN known to this process of SGLang; a second call does nothing.

    A host that does not fit is told when one of the names is used, since the server swallows what fails here. With
    SPECDEC_DISABLE set, to anything but 0, nothing happens.
    """
    if config.env("DISABLE") not in (None, "0"):
        logger.warning("specdec: switched off by SPECDEC_DISABLE; no algorithm is registered.")
        return
    host = Host.installed()
    if host is None:
        logger.error("specdec: no SGLang is installed here.")
        return
    if registered():
        return
    refusal = host.refusal()
    if refusal is not None:
        logger.error(refusal)
        _refuse(refusal)
        return
    from specdec_sglang import algorithm

    algorithm.register()
    logger.info("specdec: %s and %s are registered as speculative algorithms.", TOKENS, HIDDEN)


def registered() -> bool:
    """Whether this process of SGLang knows the names."""
    try:
        sgl.SpeculativeAlgorithm.from_string(TOKENS)
    except ValueError:
        return False
    return True


def _refuse(reason: str) -> None:
    """Register the names so that a launch with one of them ends with the reason."""

    def validate(_: object) -> None:
        raise OptionError(reason)

    for name in (TOKENS, HIDDEN):
        sgl.SpeculativeAlgorithm.register(name, supports_overlap=True, validate_server_args=validate)(lambda args: None)

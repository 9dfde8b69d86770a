"""A plug-in of the test host alone: SGLang takes its CPU attention backend, whose two kernels stand in `sgl_kernel`."""

_kept = []


def register() -> None:
    from sglang.srt.runtime_context import override_platform

    override = override_platform(has_amx=True)
    override.__enter__()
    _kept.append(override)

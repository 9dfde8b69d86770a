"""What a measurement ran on: versions and machine, as they are written beside every result."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import specdec

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "xgrammar", "sglang")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def versions() -> dict[str, str]:
    """Versions of what matters for a measurement; packages that are not installed are left out."""
    found = {"specdec": specdec.__version__, "python": platform.python_version()}
    found.update({name: number for name in _PACKAGES if (number := installed(name))})
    return found


def installed(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Processor, its matrix instructions, threads, memory and GPUs; what cannot be found out is left out."""
    info = _cpuinfo()
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": info.get("model name", platform.processor() or "unknown"),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "cpu_features": cpu_features(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if hasattr(os, "getloadavg"):
        found["load_average"] = round(os.getloadavg()[0], 2)
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def cpu_features() -> list[str]:
    """The vector and matrix instructions that decide how fast bfloat16 is, as far as the system tells."""
    flags = set(_cpuinfo().get("flags", "").split())
    return [name for name in _FLAGS if name in flags]


def command() -> str:
    """The command line of this process, with the program's name only."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}

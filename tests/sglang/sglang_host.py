"""A real SGLang on this machine's CPU: its environment, its models, and servers as subprocesses on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHIMS = HERE / "host" / "shims"
_START_S, _REPLY_S = 240, 180
# The wheel's own requirements bring CUDA; these are what its CPU path imports.
_STEPS = (
    ["torch==2.13.0"],
    ["torch==2.13.0", "-r", str(HERE / "host" / "requirements.txt"), "setuptools"],
    ["--no-deps", "sglang==0.5.23", "compressed-tensors==0.18.0", "xgrammar==0.2.7", "torchvision==0.28.0"],
)


class NotOfferedError(RuntimeError):
    """The package index of this machine does not have what the host needs."""


def environment() -> Path:
    """The Python of a virtual environment with SGLang for CPU, made once; SPECDEC_SGLANG_PYTHON names another."""
    if given := os.environ.get("SPECDEC_SGLANG_PYTHON"):
        return Path(given)
    key = hashlib.sha256(repr((_STEPS, (HERE / "host" / "requirements.txt").read_text(), sys.version)).encode())
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specdec"
    home = base / f"sglang-{key.hexdigest()[:12]}"
    python, done = home / "bin" / "python", home / ".installed"
    if not done.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        for step in _STEPS:
            _pip(python, *step)
        done.touch()
    return python


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution found" in done.stderr:
        raise NotOfferedError(f"the package index offers none of: {' '.join(arguments)}")
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@dataclass(frozen=True)
class Host:
    """What servers run on: the Python with SGLang, and where this library was installed for it."""

    python: Path
    library: Path

    def run(self, *arguments: str, path: str = "") -> str:
        """What that Python prints."""
        done = subprocess.run(
            [str(self.python), *arguments], capture_output=True, text=True, check=True, env=variables(self, path)
        )
        return done.stdout


def install(python: Path, folder: Path) -> Path:
    """This checkout, installed as a user would, into a folder of its own."""
    _pip(python, "--no-deps", "--target", str(folder), str(ROOT))
    return folder


def variables(host: Host, path: str = "", **more: str) -> dict[str, str]:
    """The environment variables of a server: the shims, the library, one thread, no network."""
    paths = [path] if path else []
    paths += [str(SHIMS), str(host.library)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
    return (
        kept
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
        }
        | more
    )


@dataclass
class Server:
    """One server: its port, its process, and where it writes what it says."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    asked: dict[str, Any] = field(default_factory=dict)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to a JSON body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_REPLY_S) as reply:
                return json.loads(reply.read() or b"null")
        except OSError as error:
            raise RuntimeError(f"{path} was not answered: {error}. The server said:\n{self.tail()}") from error

    def flush(self) -> None:
        """Empty its cache; nothing may be running."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/flush_cache", b"", method="POST")
        with urllib.request.urlopen(request, timeout=_REPLY_S) as reply:
            reply.read()

    def lines(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The events of a streamed answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_REPLY_S) as reply:
            for line in reply:
                text = line.decode().strip().removeprefix("data: ")
                if text and text != "[DONE]":
                    yield json.loads(text)

    def get(self, path: str) -> str:
        """The text under a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=_REPLY_S) as reply:
            return str(reply.read().decode())

    def generate(self, text: str, body: dict[str, Any] | None = None, **sampling: Any) -> Any:
        """The answer of /generate."""
        sampling = {"temperature": 0, "max_new_tokens": 32, **sampling}
        return self.post("/generate", {"text": text, "sampling_params": sampling, **(body or {})})

    def all(
        self, texts: list[str], at_once: int = 12, body: dict[str, Any] | None = None, **sampling: Any
    ) -> list[Any]:
        """Answers to many texts, `at_once` of them at a time, in their order."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda text: self.generate(text, body, **sampling), texts))

    def tail(self) -> str:
        """The last lines it wrote."""
        return self.log.read_text(errors="replace")[-4000:]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(python: Path, model: Path, port: int, *flags: str) -> list[str]:
    """How the server is started."""
    options = [
        *("--device", "cpu", "--attention-backend", "intel_amx", "--sampling-backend", "pytorch"),
        *("--disable-cuda-graph", "--dtype", "float32", "--max-total-tokens", "16384", "--max-running-requests", "16"),
        *("--host", "127.0.0.1", "--enable-metrics", "--sleep-on-idle"),
    ]
    return [
        str(python),
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(model),
        *options,
        "--port",
        str(port),
        *flags,
    ]


@contextmanager
def serving(host: Host, model: Path, log: Path, *flags: str, path: str = "", **settings: str) -> Iterator[Server]:
    """A server that answers; it and what it started end with the block.

    path: comes first on PYTHONPATH. settings: SPECDEC_ variables.
    """
    port = free_port()
    chosen = {f"SPECDEC_{name.upper()}": value for name, value in settings.items()}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(host.python, model, port, *flags),
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables(host, path, **chosen),
            cwd=log.parent,
            start_new_session=True,
        )
    server = Server(port, process, log)
    try:
        _wait(server)
        yield server
    finally:
        _end(process)


def _wait(server: Server) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with {server.process.returncode}:\n{server.tail()}")
        try:
            server.get("/health_generate")
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the server did not answer in {_START_S} s:\n{server.tail()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those it started: they share its session."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(15)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue

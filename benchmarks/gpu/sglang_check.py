"""Two servers after one another, without the flag and with it: are the tokens equal, and how fast is each? As JSON.

Tokens are compared at temperature 0 and the first difference of each prompt is reported with its place: in half
precision a difference where two candidates are almost equal is rounding, in float32 it is a defect. With a seed, the
flagged server must agree with itself whatever the budget.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from specdec.bench.machine import command, machine, versions

PROMPTS = [
    f"{ask} {n}"
    for n in range(1, 9)
    for ask in (
        "List the first prime numbers above",
        "Write a Python function that adds",
        "Repeat the word apple times:",
    )
]
_SPEC = ["--speculative-algorithm", "SPECDEC", "--speculative-num-draft-tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--flags", default="", help="more launch flags, for all servers")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    told: dict[str, Any] = {}
    for name, flags in (("plain", []), ("specdec 8", [*_SPEC, "8"]), ("specdec 4", [*_SPEC, "4"])):
        with served(options, flags) as port:
            told[name] = look(port, options)
    plain = told["plain"]["greedy"]
    result = {
        "command": command(),
        "machine": machine(),
        "versions": versions(),
        "model": options.model,
        "greedy_differences": differences(plain, told["specdec 8"]["greedy"]),
        "seeded_equal_across_budgets": told["specdec 8"]["seeded"] == told["specdec 4"]["seeded"],
        "accept_length": told["specdec 8"]["accept_length"],
        "tokens_per_s": {name: entry["tokens_per_s"] for name, entry in told.items()},
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


@contextmanager
def served(options: argparse.Namespace, flags: list[str]) -> Iterator[int]:
    """A server's port, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    call = [sys.executable, "-m", "sglang.launch_server", "--model-path", options.model, "--port", str(port)]
    process = subprocess.Popen([*call, "--host", "127.0.0.1", *options.flags.split(), *flags])
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with {process.returncode}; its last lines are above")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health_generate", timeout=30).read()
                break
            except OSError:
                time.sleep(0.5)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def look(port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Greedy and seeded tokens, accept length, and output tokens a second by requests in flight."""
    greedy = ask_all(port, 8, temperature=0, max_new_tokens=options.tokens)
    seeded = ask_all(port, 8, temperature=0.8, sampling_seed=7, max_new_tokens=options.tokens)
    lengths = [a["meta_info"].get("spec_accept_length") or 1.0 for a in greedy]
    speed = {}
    for wide in options.at_once:
        runs = []
        for _ in range(3):
            start = time.perf_counter()
            done = ask_all(port, wide, temperature=0, max_new_tokens=options.tokens)
            runs.append(sum(len(a["output_ids"]) for a in done) / (time.perf_counter() - start))
        speed[str(wide)] = median(runs)
    return {
        "greedy": [a["output_ids"] for a in greedy],
        "seeded": [a["output_ids"] for a in seeded],
        "accept_length": sum(lengths) / len(lengths),
        "tokens_per_s": speed,
    }


def ask_all(port: int, wide: int, **sampling: Any) -> list[Any]:
    with ThreadPoolExecutor(wide) as pool:
        return list(pool.map(lambda text: ask(port, text, sampling), PROMPTS))


def ask(port: int, text: str, sampling: dict[str, Any]) -> Any:
    body = json.dumps({"text": text, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def differences(plain: list[list[int]], ours: list[list[int]]) -> list[dict[str, int]]:
    """The first place where each prompt's tokens differ; empty where all are equal."""
    found = []
    for number, (a, b) in enumerate(zip(plain, ours, strict=True)):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if at is None and len(a) != len(b):
            at = min(len(a), len(b))
        if at is not None:
            found.append({"prompt": number, "place": at})
    return found


if __name__ == "__main__":
    main()

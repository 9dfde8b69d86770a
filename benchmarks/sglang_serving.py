"""SGLang on this machine's CPU with and without the flag, through SGLang's own load generator, as JSON.

    python benchmarks/sglang_serving.py --prompts question.jsonl --count 12 --tokens 64 --json out.json

Servers of plain decoding, of SGLang's own NGRAM and of ours stand side by side; they are asked in turn, each run after
its cache (and NGRAM's corpus) was emptied, so that no run profits from an earlier one. Medians over `--repeat` runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.progress import track

from specdec.bench.chat import encode
from specdec.bench.machine import command, machine, versions
from specdec.bench.prompts import Prompt, read_prompts
from specdec.hf.load import resolve
from specdec.text import codec_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sglang"))
import sglang_host as sh  # the host of the tests is the host of this benchmark

#: Name, flags and settings of each server; ratios are against the first.
_SPEC = ("--speculative-num-draft-tokens", "8")
SERVERS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain": ((), {}),
    "NGRAM": (("--speculative-algorithm", "NGRAM", *_SPEC), {}),
    "SPECDEC ngram": (("--speculative-algorithm", "SPECDEC", *_SPEC), {"drafter": "ngram"}),
}

#: What the servers run on, which is not what this script runs on.
_VERSIONS = """
import json
from importlib.metadata import version
print(json.dumps({name: version(name) for name in ("sglang", "torch", "transformers", "tokenizers", "xgrammar")}))
"""


def main() -> None:
    options = parsed()
    chosen = spread(read_prompts(options.prompts), options.count)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        python = sh.environment()
        host = sh.Host(python, sh.install(python, home / "library"))
        server_versions = versions() | json.loads(host.run("-c", _VERSIONS))
        model = resolve(options.model)
        texts = chat_texts(model, chosen)
        data = home / "prompts.jsonl"
        data.write_text(
            "".join(json.dumps({"conversations": [{"content": t}, {"content": "-"}]}) + "\n" for t in texts)
        )
        with running(host, model, home) as servers:
            answers = {
                name: server.all(texts, at_once=1, max_new_tokens=options.tokens) for name, server in servers.items()
            }
            runs = measure(host, servers, model, data, options)
    result = {
        "command": command(),
        "machine": machine(),
        "versions": server_versions,
        "model": options.model,
        "dtype": "float32",
        "prompts": len(texts),
        "tokens_equal": all(ids(told) == ids(answers["plain"]) for told in answers.values()),
        "accept_length": {name: accept(told) for name, told in answers.items() if name != "plain"},
        "throughput": summary(runs),
        "runs": runs,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    Console().print_json(json.dumps({key: result[key] for key in ("tokens_equal", "accept_length", "throughput")}))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prompts", type=Path, required=True, help="Spec-Bench questions, or any file that specdec bench reads"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, default=12, help="prompts, spread over the categories")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="requests in flight")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def spread(prompts: list[Prompt], count: int) -> list[Prompt]:
    """`count` prompts, the first of each category, then the second of each, and so on."""
    by: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by.setdefault(prompt.category, []).append(prompt)
    deep = max(len(group) for group in by.values())
    return [group[i] for i in range(deep) for group in by.values() if i < len(group)][:count]


def chat_texts(model: Path, prompts: list[Prompt]) -> list[str]:
    """The prompts as the model's chat template writes them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = codec_of(tokenizer)
    return [tokenizer.decode(encode(plain.source, prompt.text)) for prompt in prompts]


@contextmanager
def running(host: sh.Host, model: Path, home: Path) -> Iterator[dict[str, sh.Server]]:
    """All servers, each idle until it is asked."""
    with ExitStack() as stack:
        made = {}
        for number, (name, (flags, settings)) in enumerate(SERVERS.items()):
            log = home / f"{number}.log"
            made[name] = stack.enter_context(sh.serving(host, model, log, *flags, **settings))
        yield made


def measure(
    host: sh.Host, servers: dict[str, sh.Server], model: Path, data: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One entry for each server, number of requests in flight, and repetition; servers take turns."""
    plan = [(turn, wide, name) for turn in range(options.repeat) for wide in options.at_once for name in servers]
    found = []
    for turn, wide, name in track(plan, "serving", console=Console(stderr=True)):
        out = data.with_name("run.jsonl")
        out.unlink(missing_ok=True)
        flags = {
            "backend": "sglang", "host": "127.0.0.1", "port": servers[name].port, "model": model, "tokenizer": model,
            "dataset-name": "custom", "dataset-path": data, "num-prompts": options.count,
            "sharegpt-output-len": options.tokens, "max-concurrency": wide, "warmup-requests": 0,
            "temperature": 0, "seed": 1, "output-file": out,
        }  # fmt: skip
        call = [str(host.python), "-m", "sglang.bench_serving", "--flush-cache", "--disable-tqdm"]
        call += [str(part) for flag, value in flags.items() for part in (f"--{flag}", value)]
        done = subprocess.run(call, env=sh.variables(host), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"sglang.bench_serving failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        told = json.loads(out.read_text().splitlines()[-1])
        found.append(
            {
                "server": name,
                "at_once": wide,
                "repeat": turn,
                "output_tokens_per_s": told["output_throughput"],
                "seconds": told["duration"],
                "completed": told["completed"],
                "accept_length": told.get("accept_length"),
            }
        )
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median output tokens a second, and each against the plain server and against NGRAM in the same turn."""
    found: dict[str, Any] = {}
    for wide in sorted({run["at_once"] for run in runs}):
        speed = {
            name: [run["output_tokens_per_s"] for run in runs if run["server"] == name and run["at_once"] == wide]
            for name in SERVERS
        }
        ratios = {
            f"{name} / {base}": median(a / b for a, b in zip(speed[name], speed[base], strict=True))
            for name in SERVERS
            for base in ("plain", "NGRAM")
            if name not in (base, "plain")
        }
        found[f"{wide} at once"] = {name: median(values) for name, values in speed.items()} | ratios
    return found


def ids(answers: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def accept(answers: list[Any]) -> float:
    """Mean tokens a verification emitted, over the prompts."""
    return mean(answer["meta_info"]["spec_accept_length"] for answer in answers)


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# A short check of the SGLang plug-in on a GPU: tokens against the server without the flag, then throughput.
#   MODEL     a model folder or name (needed)
#   DRAFTER   ngram
#   FLAGS     more launch flags, for all servers
# Needs sglang 0.5.23 with its CUDA kernels and specdec-kit in the active environment. Writes sglang_check.json here.
set -euo pipefail
: "${MODEL:?name a model, as in MODEL=Qwen/Qwen2.5-7B-Instruct}"
export SPECDEC_DRAFTER="${DRAFTER:-ngram}"
specdec doctor || true
python "$(dirname "$0")/sglang_check.py" --model "$MODEL" --flags="${FLAGS:-}" --json sglang_check.json

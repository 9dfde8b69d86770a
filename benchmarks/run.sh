#!/usr/bin/env bash
# The benchmark set: drafters against plain decoding and against transformers, on the default model.
#   SPECDEC_PROMPTS   a folder with spec_bench/question.jsonl and humaneval/HumanEval.jsonl.gz (see README.md)
#   SPECDEC_MODEL     another model than smollm2
#   SPECDEC_LIMIT     prompts of each category (4)
#   SPECDEC_REPEAT    runs of each prompt (3)
#   SPECDEC_TOKENS    new tokens (128)
# Run it alone on the machine. An interrupted run goes on where it was.
set -euo pipefail
cd "$(dirname "$0")"

prompts="${SPECDEC_PROMPTS:?name a folder with prompts, see benchmarks/README.md}"
model="${SPECDEC_MODEL:-smollm2}"
common=(--dtype bf16 --max-tokens "${SPECDEC_TOKENS:-128}" --repeat "${SPECDEC_REPEAT:-3}")
mkdir -p results

specdec bench "$model" --prompts "$prompts/spec_bench/question.jsonl" --limit "${SPECDEC_LIMIT:-4}" \
    --drafters none,ngram --against transformers "${common[@]}" \
    --json results/spec_bench.json --plot results/spec_bench.png

specdec bench "$model" --prompts "$prompts/humaneval/HumanEval.jsonl.gz" --limit "$((5 * ${SPECDEC_LIMIT:-4}))" \
    --drafters none,ngram --against transformers "${common[@]}" \
    --json results/humaneval.json

python verify_cost.py --model "$model" --json results/verify_cost.json

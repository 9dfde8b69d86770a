"""Measuring decoders against each other: same prompts, interleaved runs, and no speed-up without its proof."""

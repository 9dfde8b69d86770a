from __future__ import annotations

from hypothesis import settings

settings.register_profile("specdec", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("specdec")

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("specdec", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("specdec")

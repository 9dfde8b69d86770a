"""One thread for torch: small tensors are quicker so, and results do not depend on the machine's load."""

import torch

torch.set_num_threads(1)

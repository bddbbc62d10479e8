"""One thread for torch: its busy waiting makes small operations four times slower where processes share the cores."""

import torch

torch.set_num_threads(1)

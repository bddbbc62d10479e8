"""One thread for torch: its busy waiting makes small operations four times slower where processes share the cores."""

import pytest
import torch

from workers import stop_workers

torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Distributed tests come first; the others need no workers."""
    if not {"collectives", "integrations"} & set(item.path.parts):
        stop_workers()

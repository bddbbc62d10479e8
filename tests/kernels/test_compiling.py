"""The first use says that it compiles; a later process that finds the kernels says nothing."""

import os
import subprocess
import sys

_USE = "import torch; from thinwire import kernels; kernels.checksum(torch.zeros(64, dtype=torch.uint8))"


def test_compilation_is_announced_once(tmp_path):
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    errors = [
        subprocess.run([sys.executable, "-c", _USE], env=env, capture_output=True, text=True, check=True).stderr
        for _ in range(2)
    ]
    assert errors[0].count("compiling kernels for this processor") == 1
    assert "compiling" not in errors[1]

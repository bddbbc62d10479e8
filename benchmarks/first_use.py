"""How long the first encode and decode of a method take after an installation: kernels are compiled then.

    python -m benchmarks.first_use [--methods orq-9,optimal-9]

Each method runs in a new process with an empty cache, then again with the cache that it left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

_RUN = """
import sys, time
start = time.perf_counter()
import torch, thinwire
from thinwire.schemes import from_spec
imported = time.perf_counter()
thinwire.decode(thinwire.encode(torch.randn(300_000), from_spec(sys.argv[1])))
print(f"{imported - start:.1f} {time.perf_counter() - imported:.1f}")
"""


def seconds(method: str, cache: str) -> tuple[str, str]:
    """Of the imports, and of encoding and decoding once."""
    env = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, method], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    imports, use = done.stdout.split()
    return imports, use


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="orq-9,signsgd,qsgd-9,bingrad-b,linear-9,lloydmax-4,optimal-9")
    args = parser.parse_args()
    print(f"{'method':12} {'imports, s':>10} {'first use, s':>12} {'next process, s':>15}")
    for method in args.methods.split(","):
        with tempfile.TemporaryDirectory() as cache:
            imports, first = seconds(method, cache)
            _, again = seconds(method, cache)
        print(f"{method:12} {imports:>10} {first:>12} {again:>15}")


if __name__ == "__main__":
    main()

"""thinwire: gradients quantized to 1-4 bits with optimal levels, packed for real, averaged across workers.

    frame = thinwire.encode(gradient, thinwire.ORQ(levels=9))
    gradient = thinwire.decode(frame)

In DistributedDataParallel: `thinwire.ddp.register(model)`.
"""

from thinwire import ddp
from thinwire.collectives import all_gather, all_reduce, reduce_scatter
from thinwire.errors import ThinwireError
from thinwire.levels import OptimalLevels, optimal_levels
from thinwire.schemes import (
    DRIVE,
    EDEN,
    ORQ,
    QSGD,
    BinGradB,
    BinGradPB,
    DeadZone,
    Dithered,
    Linear,
    LloydMax,
    MinMax,
    NoCompression,
    Optimal,
    Rotated,
    SignSGD,
    TernGrad,
)
from thinwire.types import Key
from thinwire.wire.public import FrameInfo, capacity, decode, encode, expected_error, inspect, warmup

__version__ = "0.1.0"

__all__ = [
    "DRIVE",
    "EDEN",
    "ORQ",
    "QSGD",
    "BinGradB",
    "BinGradPB",
    "DeadZone",
    "Dithered",
    "FrameInfo",
    "Key",
    "Linear",
    "LloydMax",
    "MinMax",
    "NoCompression",
    "Optimal",
    "OptimalLevels",
    "Rotated",
    "SignSGD",
    "TernGrad",
    "ThinwireError",
    "all_gather",
    "all_reduce",
    "capacity",
    "ddp",
    "decode",
    "encode",
    "expected_error",
    "inspect",
    "optimal_levels",
    "reduce_scatter",
    "warmup",
]

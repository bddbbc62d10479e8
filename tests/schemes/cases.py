"""The conformance list: one line a method. Tests go through it and ask for traits, never for names."""

from thinwire import (
    ORQ,
    QSGD,
    BinGradB,
    BinGradPB,
    Linear,
    LloydMax,
    MinMax,
    NoCompression,
    Optimal,
    SignSGD,
    TernGrad,
)

CASES = [
    ORQ(levels=3),
    ORQ(levels=5),
    ORQ(),
    ORQ(levels=33, level_dtype="bfloat16"),
    Optimal(),
    Optimal(levels=4, effort="fast"),
    Optimal(levels=5, block_size=None),
    BinGradPB(),
    BinGradB(),
    LloydMax(levels=3),
    SignSGD(),
    TernGrad(),
    TernGrad(clip=None),
    QSGD(),
    QSGD(levels=3, norm="l2"),
    MinMax(),
    MinMax(levels=2, level_dtype="bfloat16"),
    Linear(),
    Linear(levels=4, level_dtype="bfloat16"),
    NoCompression(),
]

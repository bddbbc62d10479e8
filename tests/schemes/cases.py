"""The conformance list: one line a method. Tests go through it and ask for traits, never for names."""

from thinwire import ORQ, QSGD, BinGradB, BinGradPB, Linear, MinMax, NoCompression, SignSGD, TernGrad

CASES = [
    ORQ(levels=3),
    ORQ(levels=5),
    ORQ(),
    ORQ(levels=33, level_dtype="bfloat16"),
    BinGradPB(),
    BinGradB(),
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

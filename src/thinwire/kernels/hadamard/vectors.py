"""Butterflies on vectors of eight float32, written for LLVM, which does not find those within a vector.

Any processor can run them; one without such vectors takes several instructions for each.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["add_products", "cross2", "cross4", "finish32", "finish64", "flip_run"]

_LANES = 8
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(32), _LANES)


def _places(
    context: Any, builder: Any, kind: Any, array: Any, at: Any, stride: Any, count: int, vector: Any = _FLOATS
) -> list[Any]:
    data = context.make_array(kind)(context, builder, array).data
    starts = [builder.add(at, builder.mul(stride, ir.Constant(at.type, i))) for i in range(count)]
    return [builder.bitcast(builder.gep(data, [start]), vector.as_pointer()) for start in starts]


def _cross(builder: Any, rows: list[Any], half: int) -> list[Any]:
    """One stage over whole vectors: row i and row i + half become their sum and their difference."""
    out = list(rows)
    for i in range(len(rows)):
        if not i & half:
            out[i], out[i + half] = builder.fadd(rows[i], rows[i + half]), builder.fsub(rows[i], rows[i + half])
    return out


def _within(builder: Any, row: Any, half: int) -> Any:
    """One stage within a vector: x + shuffled x where the lane's bit is clear, shuffled x + (-x) where it is set."""
    order = ir.Constant(_WORDS, [i ^ half for i in range(_LANES)])
    signs = ir.Constant(_WORDS, [0x80000000 if i & half else 0 for i in range(_LANES)])
    other = builder.shuffle_vector(row, row, order)
    turned = builder.bitcast(builder.xor(builder.bitcast(row, _WORDS), signs), _FLOATS)
    return builder.fadd(other, turned)


def _stages(count: int, within: bool) -> Callable[..., Any]:
    """Generate code for the last stages of a transform: over `count` vectors, then within each of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stride = ir.Constant(args[1].type, _LANES) if within else args[2]
        places = _places(context, builder, signature.args[0], args[0], args[1], stride, count)
        rows = [builder.load(place, align=4) for place in places]
        half = count // 2
        while half:
            rows = _cross(builder, rows, half)
            half //= 2
        for half in (4, 2, 1) if within else ():
            rows = [_within(builder, row, half) for row in rows]
        for row, place in zip(rows, places):
            builder.store(row, place, align=4)
        return context.get_dummy_value()

    return generate


@intrinsic
def cross2(typing_context: Any, array: Any, at: Any, stride: Any) -> Any:
    """The stage between array[at : at + 8] and the eight values `stride` further."""
    return types.void(array, types.intp, types.intp), _stages(2, within=False)


@intrinsic
def cross4(typing_context: Any, array: Any, at: Any, stride: Any) -> Any:
    """The stages of distance 2 stride and stride, on four runs of eight values."""
    return types.void(array, types.intp, types.intp), _stages(4, within=False)


@intrinsic
def finish32(typing_context: Any, array: Any, at: Any) -> Any:
    """The stages of distance 16, 8, 4, 2 and 1 on 32 values."""
    return types.void(array, types.intp), _stages(4, within=True)


@intrinsic
def finish64(typing_context: Any, array: Any, at: Any) -> Any:
    """The stages of distance 32 to 1 on 64 values."""
    return types.void(array, types.intp), _stages(8, within=True)


@intrinsic
def flip_run(typing_context: Any, words: Any, at: Any, hashes: Any) -> Any:
    """words[at + 8 t + j] ^= bit t of hashes[j], as the top bit, for 32 steps t and eight j; all are uint32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero, eight = ir.Constant(args[1].type, 0), ir.Constant(args[1].type, _LANES)
        source = _places(context, builder, signature.args[2], args[2], zero, eight, 1, _WORDS)[0]
        bits, top = builder.load(source, align=4), ir.Constant(_WORDS, [0x80000000] * _LANES)
        for step, place in enumerate(_places(context, builder, signature.args[0], args[0], args[1], eight, 32, _WORDS)):
            sign = builder.and_(builder.shl(bits, ir.Constant(_WORDS, [31 - step] * _LANES)), top)
            builder.store(builder.xor(builder.load(place, align=4), sign), place, align=4)
        return context.get_dummy_value()

    return types.void(words, types.intp, hashes), generate


@intrinsic
def add_products(typing_context: Any, x: Any, at: Any, y: Any, of: Any, lanes: Any) -> Any:
    """lanes[j] += x[at + j] y[of + j] for 32 lanes, each product rounded."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero, eight = ir.Constant(args[1].type, 0), ir.Constant(args[1].type, _LANES)
        factors = [
            _places(context, builder, signature.args[which], args[which], args[which + 1], eight, 4) for which in (0, 2)
        ]
        for a, b, lane in zip(*factors, _places(context, builder, signature.args[4], args[4], zero, eight, 4)):
            product = builder.fmul(builder.load(a, align=4), builder.load(b, align=4))
            builder.store(builder.fadd(builder.load(lane, align=4), product), lane, align=4)
        return context.get_dummy_value()

    return types.void(x, types.intp, y, types.intp, lanes), generate

"""What Numba does not offer: unchecked access to arrays, eight bytes at once, and the upper half of a product.

An index like a[first + j] costs Numba a test for negative numbers, which keeps LLVM from making vector loops, and a
view handed to another function costs two atomic operations. So inner loops take whole arrays, and `load` and `store`.
With NUMBA_BOUNDSCHECK=1 these check their bounds, too.
"""

from typing import Any

from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

__all__ = ["copy_columns", "high_product", "high_product16", "load", "load_word", "prefetch", "store", "store_word"]


def _place(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


@intrinsic
def _load(typing_context: Any, array: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], *args))

    return array.dtype(array, types.intp), generate


@intrinsic
def _store(typing_context: Any, array: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, signature.args[0], *args[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Ask for array[at] to be brought into the cache; it need not exist."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(ir.IntType(8)), *[ir.IntType(32)] * 3])
        call = builder.module.declare_intrinsic("llvm.prefetch", [ir.PointerType(ir.IntType(8))], kind)
        place = builder.bitcast(_place(context, builder, signature.args[0], *args), ir.PointerType(ir.IntType(8)))
        builder.call(call, [place, *(ir.Constant(ir.IntType(32), n) for n in (0, 3, 1))])  # to be read, soon, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@njit(forceinline=True)
def _checked_load(array, at):
    assert at >= 0
    return array[at]


@njit(forceinline=True)
def _checked_store(array, at, value):
    assert at >= 0
    array[at] = value


load, store = (_checked_load, _checked_store) if config.BOUNDSCHECK else (_load, _store)
"""array[at], and array[at] = value, of a contiguous 1-D array, for 0 <= at < len(array)."""


def _word(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(_place(context, builder, kind, array, at), ir.IntType(64).as_pointer())


@intrinsic
def load_word(typing_context: Any, array: Any, at: Any) -> Any:
    """The uint64 in bytes at .. at + 7 of a contiguous uint8 array; bounds are the caller's."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word(context, builder, signature.args[0], *args), align=1)

    return types.uint64(array, types.intp), generate


@intrinsic
def store_word(typing_context: Any, array: Any, at: Any, word: Any) -> Any:
    """Write a uint64 to bytes at .. at + 7 of a contiguous uint8 array; bounds are the caller's."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word(context, builder, signature.args[0], *args[:2]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


@intrinsic
def copy_columns(typing_context: Any, rows: Any, a: Any, b: Any, c: Any, d: Any, columns: Any, at: Any) -> Any:
    """Four runs of four float32, from a, b, c and d on, become columns: columns[256 k + at + i] = rows[r_i + k].

    Both are contiguous and 1-D; bounds are the caller's. LLVM, left alone, takes four times as long for this.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target, four = signature.args[0], signature.args[5], ir.VectorType(ir.FloatType(), 4)

        def shuffle(x: Any, y: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), 4), lanes))

        def place(kind: Any, array: Any, index: Any) -> Any:
            return builder.bitcast(_place(context, builder, kind, array, index), four.as_pointer())

        rows = [builder.load(place(source, args[0], r), align=4) for r in args[1:5]]
        low = [shuffle(rows[i], rows[i + 1], [0, 4, 1, 5]) for i in (0, 2)]
        high = [shuffle(rows[i], rows[i + 1], [2, 6, 3, 7]) for i in (0, 2)]
        for k in range(4):
            x, y = low if k < 2 else high
            column = shuffle(x, y, [0, 1, 4, 5] if k % 2 == 0 else [2, 3, 6, 7])
            to = builder.add(args[6], args[6].type(256 * k))
            builder.store(column, place(target, args[5], to), align=4)
        return context.get_dummy_value()

    return types.void(rows, *[types.intp] * 4, columns, types.intp), generate


def _high(builder: Any, a: Any, b: Any, bits: int) -> Any:
    wide = ir.IntType(2 * bits)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, bits)), ir.IntType(bits))


@intrinsic
def high_product(typing_context: Any, a: Any, b: Any) -> Any:
    """(a b) >> 64 of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _high(builder, args[0], args[1], 64)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def high_product16(typing_context: Any, a: Any, b: Any) -> Any:
    """(a b) >> 16 of two uint16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _high(builder, args[0], args[1], 16)

    return types.uint16(types.uint16, types.uint16), generate

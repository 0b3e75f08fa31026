"""TE compute of qnn.layer_norm, the twin of its NumPy reference: sums of a row, a few numbers per row, the result."""

from __future__ import annotations

from tvm import te, tirx

from ...numerics import fixed_point, tir, tir_gemmlowp
from ...numerics.annotations import KEEP
from ...numerics.layer_norm import MEAN_BITS, OUT_BITS, variance_guard
from ...numerics.tir_gemmlowp import RowStages, i64
from .operands import Constants, Expr, Operand, Stage
from .stages import stages


@stages("qnn.layer_norm")
def _layer_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, weight: Operand, bias: Operand, weight_scale: Operand
) -> te.Tensor:
    rows, count = shape
    scale = float(weight_scale.constant().reshape(()))
    x, k, m = data.tensor, te.reduce_axis((0, count), "k"), te.reduce_axis((0, count), "m")
    total = te.compute((rows, 1), lambda r, _: te.sum(x(r, k).astype("int64"), axis=k), name="row_sum")
    squares = te.compute((rows, 1), lambda r, _: te.sum(_square(x(r, m)), axis=m), name="row_squares")

    bind = RowStages((rows, 1), "row_variance")
    here = bind.indices
    mean = bind.stage(tirx.truncdiv(total(*here) * i64(1 << MEAN_BITS), i64(count)))
    unit = 1 << (2 * MEAN_BITS)
    spread = bind(squares(*here) * i64(unit // count) - mean(*here) * mean(*here))
    variance = bind(tirx.truncdiv(spread, i64(unit)))
    variance = bind(tirx.Select(variance < i64(1), i64(variance_guard(scale)), variance))
    inverse, exponent = (bind.stage(part) for part in tir_gemmlowp.inverse_sqrt(variance, bind))

    def normalized(r: Expr, c: Expr) -> Expr:
        centered = (x(r, c).astype("int64") * i64(1 << MEAN_BITS) - mean(r, 0)).astype("int32")
        return tir.multiply_tflite(centered, inverse(r, 0), exponent(r, 0)).astype("int32")

    unweighted = te.compute(shape, normalized, name="normalized", attrs={KEEP: True})

    def weighted(
        r: Expr, c: Expr
    ) -> Expr:  # int64, then truncated: int32 wraps in TFLite, but must not overflow in LLVM
        stage = Stage(constants, (r, c))
        product = unweighted(r, c).astype("int64") * stage.read(weight).astype("int64")
        return (product + stage.read(bias).astype("int64")).astype("int32")

    scaled = te.compute(shape, weighted, name="weighted")
    fp = fixed_point(scale)
    multiplier, shift = tirx.const(int(fp.multiplier), "int32"), tirx.const(int(fp.shift) + OUT_BITS, "int32")

    def rounded(r: Expr, c: Expr) -> Expr:
        wide = scaled(r, c).astype("int64")
        half = tirx.Select(wide > i64(0), i64(1 << (MEAN_BITS - 1)), i64(-(1 << (MEAN_BITS - 1))))
        return tirx.truncdiv(wide + half, i64(1 << MEAN_BITS)).astype("int32")

    units = te.compute(shape, rounded, name="units", attrs={KEEP: True})
    return te.compute(
        shape,
        lambda r, c: tir.saturate(tir.multiply_tflite(units(r, c), multiplier, shift), "int16"),
        name="layer_norm",
    )


def _square(x: Expr) -> Expr:
    wide = x.astype("int32")
    return (wide * wide).astype("int64")

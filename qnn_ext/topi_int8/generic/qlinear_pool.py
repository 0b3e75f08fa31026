"""TE compute of qnn.qlinear_avg_pool: float32 sums over windows in the order of the taps, then one rounding."""

from __future__ import annotations

from tvm import te, tirx

from ...numerics import tir
from ...numerics.windows import pooled_cells
from .operands import Constants, Expr, Operand, Stage
from .pool_sum import pool_sum
from .stages import stages


@stages("qnn.qlinear_avg_pool")
def qlinear_avg_pool(
    constants: Constants,
    out_shape: tuple[int, ...],
    data: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    out_dtype: str,
) -> te.Tensor:
    """Channels last, any number of spatial dimensions."""
    size, out_size = data.shape[1:-1], out_shape[1:-1]
    counts = pooled_cells(size, out_size, pool_size, strides, padding, count_include_pad)
    window = {"pool_size": pool_size, "strides": strides, "padding": padding, "ceil_mode": ceil_mode}
    total = pool_sum(constants, out_shape, data, input_scale, input_zero_point, **window)

    def average(*indices: Expr) -> Expr:
        stage = Stage(constants, indices)
        mean = total(*indices) / stage.read(Operand(None, counts))
        steps = mean / stage.parameter(output_scale, -1).astype("float32")
        offset = stage.parameter(output_zero_point, -1).astype("float32")
        return tir.round_to_int(steps + offset, tirx.const(0, "int32"), out_dtype)

    return te.compute(out_shape, average, name="average")

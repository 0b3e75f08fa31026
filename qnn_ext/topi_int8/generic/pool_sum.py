"""TE compute of qnn.pool_sum: float32 sums over windows in the order of the taps."""

from __future__ import annotations

from tvm import te, tirx

from ...numerics import tir
from .operands import Constants, Expr, Operand, Stage
from .stages import stages


@stages("qnn.pool_sum")
def pool_sum(
    constants: Constants,
    out_shape: tuple[int, ...],
    data: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
) -> te.Tensor:
    """Channels last, any number of spatial dimensions."""
    size, out_size = data.shape[1:-1], out_shape[1:-1]
    taps = [te.reduce_axis((0, k), f"tap{i}") for i, k in enumerate(pool_size)]

    def real(n: Expr, positions: list[Expr], c: Expr) -> Expr:
        stage = Stage(constants, (n, *positions, c))
        shifted = data.tensor(n, *positions, c).astype("int32") - stage.parameter(zero_point, -1)
        # fenced, as the sum must not contract with this multiplication
        return tir.fence(shifted.astype("float32") * stage.parameter(scale, -1).astype("float32"))

    def cell(n: Expr, *rest: Expr) -> Expr:
        *outs, c = rest
        positions = [o * s + t.var - low for o, s, t, low in zip(outs, strides, taps, padding, strict=False)]
        reach = [(o - 1) * s + k - low for o, s, k, low in zip(out_size, strides, pool_size, padding, strict=False)]
        checks: list[Expr] = []
        for position, limit, end, low in zip(positions, size, reach, padding, strict=False):
            checks += [position >= 0] if low else []
            checks += [position < limit] if end > limit else []
        value = real(n, positions, c)
        return tirx.if_then_else(tirx.all(*checks), value, tirx.const(0.0, "float32")) if checks else value

    return te.compute(out_shape, lambda *i: te.sum(cell(*i), axis=taps), name="pool_sum")

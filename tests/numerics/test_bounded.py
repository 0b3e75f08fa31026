"""Functions that stay within their operands whatever they are given, run between pages that nobody may touch."""

import mmap

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te

from qnn_ext.numerics.bounded import bounded
from tests.guarded import guarded

BIG = [0, 3, -1, 7, 2**62, -(2**62), 2**63 - 1, -(2**63), 5]
DATA = np.arange(24, dtype=np.float32).reshape(4, 6)
BAD = np.array(BIG, np.int64)
PAIRS = np.stack([BAD, BAD[::-1]], axis=1)
ROWS = np.resize(BAD, (4, 6))
ONES = np.ones((4, 6), np.float32)

CALLS = {
    "take": (lambda x, i: relax.op.take(x, i, axis=0), DATA, BAD),
    "take_flat": (lambda x, i: relax.op.take(x, i), DATA.reshape(-1), BAD),
    "gather_elements": (lambda x, i: relax.op.gather_elements(x, i, axis=1), DATA, ROWS),
    "gather_nd": (relax.op.gather_nd, DATA, PAIRS),
    "gather_nd_rows": (relax.op.gather_nd, DATA, BAD[:, None]),
    **{
        f"scatter_elements_{reduction}": (
            lambda x, i, u, reduction=reduction: relax.op.scatter_elements(x, i, u, axis=0, reduction=reduction),
            DATA,
            ROWS,
            ONES,
        )
        for reduction in ("update", "add", "mul", "min", "max")
    },
    "scatter_nd": (lambda x, i, u: relax.op.scatter_nd(x, i, u, "add"), DATA, PAIRS, np.ones(9, np.float32)),
    "index_tensor": (lambda x, i, j: relax.op.index_tensor(x, [i, j]), DATA, BAD, BAD[::-1].copy()),
    "index_put": (
        lambda x, i, j, u: relax.op.index_put(x, (i, j), u),
        DATA,
        BAD,
        BAD[::-1].copy(),
        ONES.reshape(-1)[:9],
    ),
    "reverse_sequence": (lambda x, n: relax.op.reverse_sequence(x, n, 1, 0), DATA, BAD[[4, 5, 6, 7]]),
    "roi_align": (
        lambda x, rois: relax.op.vision.roi_align(x, rois, (2, 2), 1.0, 2, layout="NCHW"),
        DATA.reshape(1, 1, 4, 6),
        np.float32([[np.nan] * 5, [1e30] * 5, [-1e30] * 5, [7, 0, 0, 3, 3], [0, np.inf, -np.inf, 1, 1]]),
    ),
    "grid_sample": (
        lambda x, grid: relax.op.image.grid_sample(x, grid),
        DATA.reshape(1, 1, 4, 6),
        np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, 2, -2]).reshape(1, 2, 2, 2),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_outside_the_operands_is_touched(name):
    """The operands end where a page ends that the process may not read, and begin where one begins."""
    call, *arrays = CALLS[name]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(array.shape, str(array.dtype))) for i, array in enumerate(arrays)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(call(*params)))
    mod = bounded(relax.transform.LegalizeOps()(builder.get()))
    kernels = [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    ty = mod["main"].ret_ty
    out = np.zeros([int(dim) for dim in ty.shape], str(ty.dtype))
    results = []
    for at_end in (True, False):
        with guarded([*arrays, out], at_end) as places:
            tensors = [tvm_ffi.from_dlpack(place) for place in places]
            results.append(machine["main"](*tensors[:-1]).numpy())
            if len(kernels) == 1:  # the result between guards, too
                tvm.compile(kernels[0].with_attr("global_symbol", "main"), target="llvm")(*tensors)
                np.testing.assert_array_equal(places[-1], results[0])
    np.testing.assert_array_equal(results[0], results[1])


def test_pages_are_guarded():
    """The test above can fail: memory after the array is not readable."""
    with guarded([np.zeros(3, np.float32)], at_end=True) as (array,):
        assert (array.ctypes.data + array.nbytes) % mmap.PAGESIZE == 0
        with open("/proc/self/maps") as maps:
            behind = next(line for line in maps if int(line.split("-")[0], 16) == array.ctypes.data + array.nbytes)
        assert behind.split()[1].startswith("---")


def test_what_is_proven_stays_as_it_is():
    data, table = te.placeholder((7,), "uint8", name="data"), te.placeholder((256,), name="table")
    looked_up = te.compute((7,), lambda i: table(data(i).astype("int32")), name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([data, table, looked_up])})
    assert tvm_ffi.structural_equal(bounded(mod), mod)
    small = te.placeholder((255,), name="table")
    looked_up = te.compute((7,), lambda i: small(data(i).astype("int32")), name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([data, small, looked_up])})
    assert not tvm_ffi.structural_equal(bounded(mod), mod)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_shifts_by_any_amount(dtype):
    info = np.iinfo(dtype)
    amounts = np.array([0, 1, info.bits - 1, info.bits, min(100, info.max), info.max, max(info.min, -1)], dtype)
    x = np.array([info.max, info.min, 3, 1, 5], dtype)
    values, counts = (array.reshape(-1) for array in np.meshgrid(x, amounts))
    for name, expected in (
        ("left_shift", lambda v, n: v << n if 0 <= n < info.bits else 0),
        ("right_shift", lambda v, n: v >> n if 0 <= n < info.bits else (-1 if v < 0 else 0)),
    ):
        params = [relax.Var(f"p{i}", relax.TensorType(values.shape, dtype)) for i in range(2)]
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            builder.emit_func_output(builder.emit(getattr(relax.op, name)(*params)))
        mod = bounded(relax.transform.LegalizeOps()(builder.get()))
        machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(counts)).numpy()
        wanted = [expected(int(v), int(n)) for v, n in zip(values, counts, strict=True)]
        np.testing.assert_array_equal(
            found, np.array([value % (1 << info.bits) for value in wanted], np.uint64).astype(dtype), err_msg=name
        )

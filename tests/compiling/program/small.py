"""Models of a few operators."""

from tvm import relax

from qnn_ext.module import QnnModule, TensorSpec


def small_module(build, inputs, states=()) -> QnnModule:
    """A module of what `build(builder, parameters)` returns: outputs, then states. inputs: (shape, dtype) of each; the
    last ones are the states."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([builder.normalize(value) for value in build(builder, params)]))
        builder.emit_func_output(result)
    function = builder.get()["main"]
    specs = [TensorSpec(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs)]
    outputs = [
        TensorSpec(f"y{i}", tuple(int(d) for d in ty.shape), str(ty.dtype))
        for i, ty in enumerate(function.ret_ty.fields)
    ]
    kept = len(specs) - len(states), len(outputs) - len(states)
    return QnnModule(builder.get(), tuple(specs[: kept[0]]), tuple(outputs[: kept[1]]), tuple(states))

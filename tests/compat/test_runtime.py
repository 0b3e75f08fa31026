"""Building, running, saving and loading through the façade, as Relay-era scripts do it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compat import targets
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.tvm import IRModule, cpu, device, nd, relay, runtime, target, transform
from qnn_ext.compat.tvm.contrib import graph_executor, graph_runtime, utils
from qnn_ext.compat.tvm.runtime.vm import VirtualMachine
from qnn_ext.errors import ArtifactError, InputError, ShapeError, TargetError, UnsupportedOperatorError

rng = np.random.default_rng(3)
WEIGHT = rng.integers(-128, 128, (5, 8)).astype(np.int8)
DATA = rng.integers(0, 256, (3, 8)).astype(np.uint8)
EXPECTED = (DATA.astype(int) - 7) @ WEIGHT.T.astype(int)


def dense(weight: relay.Expr) -> relay.Expr:
    qparams = [relay.const(value) for value in (7, 0, 0.5, 0.5)]
    return relay.qnn.op.dense(relay.var("data", shape=(3, 8), dtype="uint8"), weight, *qparams, units=5)


@pytest.fixture(scope="module")
def library():
    module = IRModule.from_expr(dense(relay.var("weight", shape=(5, 8), dtype="int8")))
    with transform.PassContext(opt_level=3, disabled_pass=["AlterOpLayout"], config={"relay.FuseOps.max_depth": 10}):
        return relay.build(module, target="x86-64", params={"weight": nd.array(WEIGHT), "unknown": WEIGHT})


def test_three_parts(library):
    """graph, lib, params, as before TVM 0.7, with set_input by name, index and keyword."""
    graph, lib, params = library
    assert [node["name"] for node in json.loads(graph)["nodes"]] == ["data"]
    module = graph_runtime.create(graph, lib, ctx=cpu(0))
    module.set_input("data", DATA.astype(np.int64))  # converted, as by Relay's executor
    module.set_input(**params)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).asnumpy(), EXPECTED)
    module.set_input(0, np.zeros_like(DATA))
    module.run(data=nd.array(DATA, cpu()))
    np.testing.assert_array_equal(module.get_output(0, nd.empty((3, 5), "int32")).numpy(), EXPECTED)


def test_graph_module(library):
    module = graph_executor.GraphModule(library["default"](device("llvm", 0)))
    assert module.get_input_info() == ({"data": (3, 8)}, {"data": "uint8"})
    assert (module.get_num_inputs(), module.get_num_outputs(), module.get_input_index("none")) == (1, 1, -1)
    with pytest.raises(InputError, match=r"call run\(\) first"):
        module.get_output(0)
    module["set_input"]("data", DATA)
    np.testing.assert_array_equal(module.get_input("data").numpy(), DATA)
    timing = module.benchmark(cpu(), repeat=3, number=2)
    assert len(timing.results) == 3 and timing.min <= timing.median <= timing.max
    assert str(timing).startswith("Execution time summary:")
    evaluator = module.module["default"](cpu())
    assert evaluator is library
    assert len(module.time_evaluator("run", cpu(), number=1, repeat=2, min_repeat_ms=1)().results) == 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("weights", DATA, "could not find 'weights' in the model's inputs: it takes 'data'"),
        (4, DATA, "there is no input 4"),
        ("data", DATA[:2], r"must have shape \(3, 8\)"),
        ("data", nd.array(DATA.astype(np.float32)), "must be uint8, found an NDArray of float32"),
    ],
)
def test_wrong_inputs(library, key, value, message):
    with pytest.raises(InputError, match=message):
        graph_executor.GraphModule(library).set_input(key, value)


def test_saved_and_loaded(library):
    """A file under a library's name, the graph as JSON, the parameters as bytes, as the deploy tutorials keep them."""
    folder = utils.tempdir()
    path = folder.relpath("deploy.so")
    assert library.export_library(path, fcompile="anything") == path
    assert folder.listdir() == ["deploy.so"]
    loaded = runtime.load_module(path)
    module = graph_executor.create(library.get_graph_json(), loaded, cpu())
    module.load_params(relay.save_param_dict(library.get_params()))
    module.run(data=DATA)
    np.testing.assert_array_equal(module.get_output(0).numpy(), EXPECTED)
    np.testing.assert_array_equal(qnn_ext.load(path)(DATA), EXPECTED)
    with pytest.raises(ArtifactError, match="holds no module"):
        loaded.ir_mod  # noqa: B018


def test_parameters_as_bytes():
    params = {"weight": nd.array(WEIGHT)}
    np.testing.assert_array_equal(relay.load_param_dict(relay.save_param_dict(params))["weight"].numpy(), WEIGHT)
    module = graph_executor.GraphModule(relay.build(dense(relay.var("weight", shape=(5, 8), dtype="int8")), "x86-64"))
    module.load_params(relay.save_param_dict(params))
    module.run(data=DATA)
    np.testing.assert_array_equal(module.get_output(0).numpy(), EXPECTED)
    with pytest.raises(InputError, match=r"params: 'weight' must be int8 \(5, 8\), found int32 \(8,\)"):
        relay.build(dense(relay.var("weight", shape=(5, 8), dtype="int8")), params={"weight": np.zeros(8, np.int32)})


@pytest.mark.parametrize("kind", ["graph", "vm", "debug"])
def test_create_executor(kind):
    expr = dense(relay.const(WEIGHT))
    executor = relay.create_executor(kind, IRModule.from_expr(expr), cpu(), "x86-64")
    np.testing.assert_array_equal(executor.evaluate()(DATA).numpy(), EXPECTED)
    function = relay.Function(relay.analysis.free_vars(expr), relay.Tuple([expr, expr + relay.const(1)]))
    results = executor.evaluate(function)(data=DATA)
    assert isinstance(results, runtime.container.ADT)
    one, two = results
    np.testing.assert_array_equal(two.numpy(), one.numpy() + 1)
    value = executor.evaluate(relay.const(2) * relay.const(3) - relay.const(1))
    assert value.numpy() == 5


def test_results_within_results():
    """A tuple of tuples is built as all its tensors, in order; a module is filled by the name of its function."""
    x = relay.var("x", shape=(3,), dtype="int32")
    one, two, three = (x + relay.const(number) for number in (1, 2, 3))
    module = IRModule()
    module[relay.GlobalVar("main")] = relay.Function([x], relay.Tuple([one, relay.Tuple([relay.Tuple([two]), three])]))
    assert module.get_global_vars() == [relay.GlobalVar("main")]
    found = graph_executor.GraphModule(relay.build(module, "x86-64"))
    found.run(x=np.arange(3))
    results = [found.get_output(index).numpy()[0] for index in range(found.get_num_outputs())]
    assert results == [1, 2, 3]


def test_open_dimensions():
    """relay.Any: the virtual machine takes any shape; a graph takes batches of any size, and has to know the rest."""
    x = relay.var("x", shape=(relay.Any(), 4), dtype="float32")
    expr = relay.nn.relu(x * relay.const(-1.0))
    machine = VirtualMachine(relay.vm.compile(IRModule.from_expr(expr), "x86-64"), cpu())
    for rows in (2, 5, 2):
        data = rng.normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(machine.invoke("main", data).numpy(), np.maximum(-data, 0))
    machine.set_input("main", x=data)
    np.testing.assert_array_equal(machine.run().numpy(), np.maximum(-data, 0))
    assert len(machine.benchmark(cpu(), data, repeat=2, number=1).results) == 2
    assert repr(expr.checked_type) == "Tensor[(?, 4), float32]"
    graph = graph_executor.GraphModule(relay.build(expr, "x86-64"))
    graph.run(x=data)
    np.testing.assert_array_equal(graph.get_output(0).numpy(), np.maximum(-data, 0))
    with pytest.raises(UnsupportedOperatorError, match=r"may mix the samples; fix the batch size: relay\.vm\.compile"):
        relay.build(relay.sum(x, axis=0), "x86-64")
    wide = relay.nn.relu(relay.var("x", shape=(4, relay.Any()), dtype="float32"))
    with pytest.raises(ShapeError, match=r"input 'x' has an open dimension .*: compile with relay\.vm\.compile"):
        relay.build(wide, "x86-64")


def test_imported_model_inside_a_function():
    """`net.body` of an imported model with a layer added, as tune_relay_x86.py does."""
    imported = qnn_ext.from_tflite("qnn_ext/data/digits_cnn_int8.tflite")
    module = IRModule.from_model(imported)
    net = module["main"]
    scaled = relay.Function(
        net.params, relay.cast(net.body, "int32") * relay.const(2), None, net.type_params, net.attrs
    )
    image = rng.integers(-128, 128, imported.inputs[0].shape).astype(np.int8)
    single = relay.create_executor("graph", module, target="x86-64").evaluate()(image).numpy()
    doubled = relay.create_executor("graph", target="x86-64").evaluate(scaled)(image).numpy()
    np.testing.assert_array_equal(doubled, 2 * single.astype(int))
    assert module.model() is imported
    assert relay.analysis.count_layers(net, ["qnn_ext.model"]) == 1


# ---- targets -----------------------------------------------------------------------------------------------------

ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("llvm -mcpu=skylake-avx512", {"kind": "llvm", "mcpu": "skylake-avx512"}),
        ("llvm -mcpu core-avx2 -libs=cblas -opt-level=3", {"kind": "llvm", "mcpu": "core-avx2"}),
        ("llvm -device=arm_cpu -mtriple=aarch64-linux-gnu", ARM),
        ("llvm -target=aarch64-linux-gnu -mattr=+neon,+dotprod", {**ARM, "mattr": ["+neon", "+dotprod"]}),
        ("llvm -num-cores=3", {"kind": "llvm", "num-cores": 3}),
        ("cuda -arch=sm_75 -model=t4", {"kind": "cuda", "arch": "sm_75"}),
        ("native", "native"),
        ({"cpu": "llvm -mcpu=haswell"}, {"kind": "llvm", "mcpu": "haswell"}),
        ({"cpu": "llvm", "cuda": "cuda -arch=sm_80"}, {"kind": "cuda", "arch": "sm_80"}),
        (target.arm_cpu("rasp4b64"), "rpi4"),
        (target.cuda(model="a100"), "sm_80"),
        (target.cuda(arch="sm_90"), "sm_90"),
    ],
    ids=str,
)
def test_targets(old, new):
    assert targets.resolved(old) == new
    assert target.Target(old).kind.name == ("cuda" if "sm_" in str(new) else "llvm")


def test_current_target():
    assert target.Target.current() is None
    with target.Target("llvm -mcpu=haswell") as outer:
        assert targets.resolved(None) == {"kind": "llvm", "mcpu": "haswell"}
        with outer:
            assert target.Target.current() is outer
    assert target.Target.current() is None


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("llvm -march=none", "there is no option -march"),
        ("llvm haswell", "'haswell' is no option"),
        ("", "must be a string"),
        ([], "no target to build for"),
        ("opencl", "unknown CPU 'opencl'"),
    ],
)
def test_wrong_targets(old, message):
    with pytest.raises(TargetError, match=message):
        relay.build(dense(relay.const(WEIGHT)), target=old)


def test_unknown_board():
    with pytest.raises(TargetError, match="the board 'pixel2' is not known"):
        target.arm_cpu("pixel2")


def test_boards_of_32_bits():
    """As in Relay, "rasp4b" is the board's 32-bit system, and "rasp4b64" that of 64 bits."""
    with pytest.warns(UserWarning, match=r'is a 32-bit system, .* 64-bit system is tvm\.target\.arm_cpu\("rasp4b64"\)'):
        board = target.arm_cpu("rasp4b")
    assert board.mcpu == "cortex-a72" and board.attrs["mtriple"].startswith("armv7l")
    library = relay.build(dense(relay.const(WEIGHT)), board)
    assert "cortex-a72" in str(library.engine.target) and "armv7l" in library.get_source("ll")


def test_plain_llvm_warns_once(monkeypatch, recwarn):
    """Baseline code is what was asked for; it says once what would be faster."""
    monkeypatch.setattr(targets, "_said", [])
    monkeypatch.setattr(targets, "make_target", lambda target: target)
    monkeypatch.setattr(targets, "required_features", lambda target: ["avx2"] if target == "native" else [])
    assert targets.resolved("llvm") == targets.resolved("llvm") == {"kind": "llvm"}
    (warning,) = recwarn.list
    assert re.search(
        r'it leaves out 1 instruction sets of this one\. "llvm -mcpu=\S+" is this machine', str(warning.message)
    )


def test_refusals():
    with pytest.raises(NotHonouredError, match=r"engine\.save writes one file"):
        relay.build(dense(relay.const(WEIGHT)), executor="aot")
    with pytest.raises(ArtifactError, match="a library compiled by an older TVM cannot run"):
        graph_executor.create("{}", object(), cpu())
    with pytest.raises(TypeError, match=r"convert 1 with relay\.const first"):
        relay.var("x", shape=(1,)) + 1
    with pytest.raises(ShapeError, match=r"relay\.add: operands and attributes do not match"):
        relay.testing.run_infer_type(relay.var("x", shape=(3,)) + relay.var("y", shape=(4,)))
    with pytest.raises(ShapeError, match=r"relay\.var\('x'\) has no type"):
        IRModule.from_expr(relay.nn.relu(relay.var("x"))).model()

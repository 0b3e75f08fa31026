"""Imports damaged models in a process of its own, so that a crash of native code has a name and kills no test run.

python import_fuzz.py --part 0/2 --cases 30     from this folder; --only CONV_2D,LSTM picks models by name

Prints one line of JSON for each case that went wrong, then a summary. --progress names a file for the case under way.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import resource
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT)]

import ai_edge_litert.schema_py_generated as schema  # noqa: E402
from test_reader_fuzz import damaged  # noqa: E402
from tvm import relax  # noqa: E402

import qnn_ext  # noqa: E402
from qnn_ext import InputError, Interpreter, QnnError  # noqa: E402
from qnn_ext.frontends.tflite.reader import read_model  # noqa: E402
from qnn_ext.module import QnnModule, TensorSpec  # noqa: E402
from tests.conformance.cases import load_cases  # noqa: E402

HANG_SECONDS = 60  # for a case on a busy machine; the watchdog then ends the process
SLOW_SECONDS = 5.0  # of CPU time for an import
HEADROOM = 2 << 30  # bytes of address space beyond what the libraries take
RUN_ELEMENTS = 200_000  # of all tensors of a model that is run
# What makes a size, axis, stride, index, enum or float absurd.
WORDS = (
    0, 1, 2, 3, 5, 7, 16, 127, 128, 255, 256, 0xFFFF, 1 << 20, 1 << 24, 1 << 27, 1 << 30, (1 << 31) - 1, 1 << 31,
    0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFF00, 0x3F800000, 0x7F800000, 0x7FC00000, 0xFF800000, 0x00800000, 0x7F000000,
)  # fmt: skip


# ---- models and mutations ----------------------------------------------------------------------------------------


def open_shapes(model: bytes) -> bytes:
    """The model without the shapes of what it computes: nothing but an operator's own checks then stops a mutation."""
    tree = schema.ModelT.InitFromPackedBuf(bytearray(model), 0)
    for graph in tree.subgraphs:
        for index in {int(index) for operator in graph.operators for index in operator.outputs}:
            graph.tensors[index].shape = graph.tensors[index].shapeSignature = None
    return packed(tree)


def packed(tree: schema.ModelT) -> bytes:
    """The file."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def good_models() -> dict[str, bytes]:
    """One model of every operator for integers, and one for each other kind; once as it is, once with open shapes; and
    the bundled networks."""
    first = {}
    for case in load_cases():
        kind = "integer" if case.dtype in ("int8", "uint8", "int16") else case.dtype
        kind = kind if kind in ("integer", "hybrid", "float32") else "other"
        first.setdefault((case.operator, kind), case)
    models = {case.name: case.model for case in first.values()}
    models |= {f"{name} (open shapes)": open_shapes(model) for name, model in models.items()}
    return models | {path.stem: path.read_bytes() for path in sorted((ROOT / "qnn_ext/data").glob("*.tflite"))}


def overwritten(good: bytes, cases: int) -> Iterator[tuple[str, bytes]]:
    """One to three 32-bit words or single bytes replaced by values that mean something to operators."""
    for case in range(cases):
        rng, data, name = np.random.default_rng([case, len(good)]), bytearray(good), []
        for _ in range(rng.choice([1, 1, 2, 3])):
            width = int(rng.choice([1, 4, 4]))
            start = width * int(rng.integers(8 // width, len(data) // width))
            old = int.from_bytes(data[start : start + width], "little")
            value = int(rng.choice([*WORDS, old + 1, old - 1, 2 * old, -old])) % (1 << 8 * width)
            data[start : start + width] = value.to_bytes(width, "little")
            name.append(f"{start}:={value:#x}")
        yield f"overwritten {case} {' '.join(name)}", bytes(data)


def mutants(good: bytes, cases: int) -> Iterator[tuple[str, bytes]]:
    """About `cases` damaged variants of a good file."""
    yield from overwritten(good, cases // 3)
    yield from damaged(good, cases // 3, len(good))
    yield from tampered(good, cases - 2 * (cases // 3))


NUMBERS = (0, 1, -1, 2, 3, 4, 5, 64, 255, 1 << 16, 1 << 20, 1 << 24, 1 << 30, (1 << 31) - 1, -(1 << 31))
SCALES = (0.0, -1.0, 1.0, 1e-30, 1e-38, 1e30, 3e38, float("inf"), float("nan"))


def tampered(good: bytes, cases: int) -> Iterator[tuple[str, bytes]]:
    """Valid files whose content makes no sense: also fields that the good file leaves at their default."""
    for case in range(cases):
        rng, name = np.random.default_rng([case, len(good), 1]), []
        tree = schema.ModelT.InitFromPackedBuf(bytearray(good), 0)
        for _ in range(rng.choice([1, 1, 2])):
            name.append(TAMPERERS[rng.integers(len(TAMPERERS))](tree, rng))
        try:
            yield f"tampered {case} {', '.join(name)}", packed(tree)
        except (struct.error, TypeError, OverflowError):  # a value the field cannot hold
            continue


def tamper_options(tree: schema.ModelT, rng: np.random.Generator) -> str:
    """Set a field of some operator's options."""
    operator = pick(tree.subgraphs[0].operators, rng)
    fields = [key for key, value in vars(operator.builtinOptions or object).items() if isinstance(value, (int, float))]
    if not fields:
        return "no options"
    field, value = pick(fields, rng), pick([*NUMBERS, 0.5, 1e30], rng)
    old = getattr(operator.builtinOptions, field)
    if not isinstance(value, type(old)) and not isinstance(old, float):
        value = int(value % 256)
    setattr(operator.builtinOptions, field, value)
    return f"{field} = {value}"


def tamper_shape(tree: schema.ModelT, rng: np.random.Generator) -> str:
    """Another dimension, a missing or an additional one."""
    index = int(rng.integers(len(tree.subgraphs[0].tensors)))
    tensor = tree.subgraphs[0].tensors[index]
    shape = [] if tensor.shape is None else [int(dim) for dim in tensor.shape]
    place = int(rng.integers(len(shape) + 1))
    shape[place : place + int(rng.integers(2))] = [pick(NUMBERS, rng)][: int(rng.integers(2))]
    tensor.shape, tensor.shapeSignature = shape, None
    return f"shape of tensor {index} = {shape}"


def tamper_constant(tree: schema.ModelT, rng: np.random.Generator) -> str:
    """Another number within an int32 constant: an axis, a size, an index."""
    tensors = [t for t in tree.subgraphs[0].tensors if t.type == schema.TensorType.INT32]
    buffers = [tree.buffers[t.buffer] for t in tensors if tree.buffers[t.buffer].data is not None]
    if not buffers:
        return "no constant"
    buffer = pick(buffers, rng)
    values = np.array(buffer.data, np.uint8).view(np.int32).copy()
    values[rng.integers(len(values))] = pick(NUMBERS, rng)
    buffer.data = values.view(np.uint8)
    return f"constant = {values[:8].tolist()}"


def tamper_tensor(tree: schema.ModelT, rng: np.random.Generator) -> str:
    """Another dtype, scale, zero point or axis, or none."""
    index = int(rng.integers(len(tree.subgraphs[0].tensors)))
    tensor = tree.subgraphs[0].tensors[index]
    kind = pick(["type", "scale", "zero point", "axis", "nothing", "variable"], rng)
    if kind == "type":
        tensor.type = int(rng.integers(19))
    elif kind == "variable":
        tensor.isVariable = not tensor.isVariable
    elif kind == "nothing" or tensor.quantization is None:
        tensor.quantization = None
    elif kind == "scale":
        tensor.quantization.scale = [pick(SCALES, rng) for _ in range(rng.integers(1, 4))]
    elif kind == "zero point":
        tensor.quantization.zeroPoint = [pick([-129, -128, 127, 128, 255, 1 << 40], rng)]
    else:
        tensor.quantization.quantizedDimension = pick(NUMBERS, rng)
    return f"{kind} of tensor {index}"


def tamper_wiring(tree: schema.ModelT, rng: np.random.Generator) -> str:
    """Another tensor, or none, as an operator's input."""
    graph = tree.subgraphs[0]
    operator = pick(graph.operators, rng)
    inputs = [] if operator.inputs is None else [int(index) for index in operator.inputs]
    place = int(rng.integers(len(inputs) + 1))
    inputs[place : place + 1] = [int(rng.integers(-1, len(graph.tensors)))][: int(rng.integers(2))]
    operator.inputs = inputs
    return f"inputs = {inputs}"


def pick(choices: Sequence[Any], rng: np.random.Generator) -> Any:
    """One of them."""
    return choices[int(rng.integers(len(choices)))]


TAMPERERS = (tamper_options, tamper_options, tamper_shape, tamper_constant, tamper_tensor, tamper_wiring)


# ---- one case ----------------------------------------------------------------------------------------------------


class Checker:
    """Imports one damaged file after the other; every `run_every`th that is accepted is interpreted as well, every
    `build_every`th is compiled."""

    def __init__(self, run_every: int, build_every: int) -> None:
        self.run_every, self.build_every = run_every, build_every
        self.accepted = self.refused = self.run = self.built = 0

    def check(self, data: bytes, numerics: str) -> str:
        """What went wrong, "" when nothing did."""
        start, module = time.process_time(), None
        try:
            module = qnn_ext.from_tflite(data, numerics=numerics)
        except QnnError as error:
            problem = refusal_problem(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error} at {place(error)}"
        else:
            problem = shape_problem(module, data)
        seconds = time.process_time() - start
        self.accepted += module is not None
        self.refused += module is None
        if not problem and seconds > SLOW_SECONDS:
            problem = f"took {seconds:.1f} s"
        return problem or (self.execution_problem(module) if module is not None else "")

    def execution_problem(self, module: QnnModule) -> str:
        """Whether the accepted model runs and yields what it declares."""
        wanted = not self.accepted % self.run_every, not self.accepted % self.build_every
        if not any(wanted) or total_elements(module) > RUN_ELEMENTS:
            return ""
        inputs = [sample(spec) for spec in module.inputs]
        try:
            with np.errstate(all="ignore"):
                if wanted[0]:
                    self.run += 1
                    if problem := result_problem(module, Interpreter(module).run(inputs)):
                        return problem
                if wanted[1]:
                    self.built += 1
                    return result_problem(module, qnn_ext.build(module).run(inputs))
        except InputError:  # random divisors and indices may well be wrong, and are refused by name
            return ""
        except Exception as error:
            return f"accepted, then at run time {type(error).__name__}: {str(error)[-300:]} at {place(error)}"
        return ""


def refusal_problem(error: QnnError) -> str:
    """Messages are one line that says something; running out of memory is no check."""
    cause: BaseException | None = error
    while isinstance(cause, QnnError):
        cause = cause.__cause__
    if isinstance(cause, MemoryError):
        return f"ran out of memory: {error}"
    return "" if str(error) and "\n" not in str(error) else f"message is no line: {str(error)!r}"


def shape_problem(module: QnnModule, data: bytes) -> str:
    """The inferred output shapes are those of the file, where the file says what they are."""
    graph = read_model(data).subgraphs[0]
    for spec, index in zip(module.outputs, graph.outputs, strict=True):
        tensor = graph.tensors[index]
        signature = tensor.shape_signature or tensor.shape
        fixed = len(signature) == len(spec.shape) and all(
            s in (-1, d) for s, d in zip(signature, spec.shape, strict=True)
        )
        if (tensor.shape and not fixed) or spec.dtype != tensor.dtype:
            return f"output {spec} is {tensor.dtype} {tensor.shape} in the file"
    return ""


def result_problem(module: QnnModule, results: dict[str, np.ndarray]) -> str:
    """What was computed has the shapes and dtypes that the module declares."""
    for spec, value in zip(module.outputs, results.values(), strict=True):
        if value.shape != spec.shape or str(value.dtype) != spec.dtype:
            return f"output {spec} is {value.dtype} {value.shape} when it is run"
    return ""


def total_elements(module: QnnModule) -> int:
    """Elements of all tensors of the main function."""
    function = module.ir["main"]
    variables = [*function.params, *(b.var for block in function.body.blocks for b in block.bindings)]
    shapes = [v.ty.shape for v in variables if isinstance(v.ty, relax.TensorType)]
    return sum(math.prod(int(dim) for dim in shape) for shape in shapes)


def sample(spec: TensorSpec) -> np.ndarray:
    """An input: small integers, normal floats."""
    rng = np.random.default_rng(7)
    if spec.dtype.startswith("float"):
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(0, 2 if spec.dtype == "bool" else 100, spec.shape).astype(spec.dtype)


def place(error: BaseException) -> str:
    """The innermost frames of Python."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


# ---- all cases ---------------------------------------------------------------------------------------------------


def limit_memory() -> None:
    """Address space beyond what the libraries have taken so far, so that a huge request fails at once."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + HEADROOM, taken + HEADROOM))


def main() -> None:
    """Run the cases of one part of the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1", help="I/N: every Nth model from the Ith on")
    parser.add_argument("--cases", type=int, default=20, help="for every model")
    parser.add_argument("--only", default="", help="parts of model names, separated by commas")
    parser.add_argument("--run-every", type=int, default=10, help="interpret every Nth model that is accepted")
    parser.add_argument("--build-every", type=int, default=10**9, help="compile every Nth model that is accepted")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first cases, to go on after a crash")
    parser.add_argument("--progress", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen = [(n, m) for n, m in good_models().items() if any(word in n for word in arguments.only.split(","))]
    warnings.simplefilter("ignore")
    limit_memory()
    checker, number = Checker(arguments.run_every, arguments.build_every), 0
    for name, good in chosen[part::parts]:
        for mutation, data in mutants(good, arguments.cases):
            number += 1
            if number <= arguments.skip:
                continue
            arguments.progress.write_text(f"case {number}: {name}, {mutation}\n")
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            if problem := checker.check(data, ("float32", "tflite")[number % 2]):
                print(
                    json.dumps({"case": number, "model": name, "mutation": mutation, "problem": problem}),
                    flush=True,
                )
            faulthandler.cancel_dump_traceback_later()
    counts = {key: getattr(checker, key) for key in ("accepted", "refused", "run", "built")}
    print(json.dumps({"cases": number, **counts}))


if __name__ == "__main__":
    main()

"""Runs a model through LiteRT in a child process, because some refused combinations abort the process.

`record(spec)` gives the inputs and the goldens of the reference kernels and of the default resolver (XNNPACK). Where
the reference resolver does not know an operator or its version, the builtin kernels without XNNPACK stand in for it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from .builder import Spec, make_trial, rng_for

TIME_LIMIT_S = 60
KERNELS = {"reference": "BUILTIN_REF", "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "default": "AUTO"}
NOT_REGISTERED = "Didn't find op for builtin opcode"


@dataclass
class Recording:
    """The recording of one case, or an error text where LiteRT refused it."""

    model: bytes
    inputs: list[list[np.ndarray]]
    reference: list[list[np.ndarray]] = field(default_factory=list)
    default: list[list[np.ndarray]] = field(default_factory=list)
    reference_kernels: str = "reference"
    reference_error: str = ""
    default_error: str = ""


def invoke(model: bytes, trials: list[list[np.ndarray]], kernels: str, stateful: bool) -> list[list[np.ndarray]]:
    """Outputs of every trial. Stateful models start from reset variables and keep their state between trials."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType[KERNELS[kernels]]
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind, num_threads=1)
    interpreter.allocate_tensors()
    if stateful:
        interpreter.reset_all_variables()
    ins, outs = interpreter.get_input_details(), interpreter.get_output_details()
    results = []
    for values in trials:
        for detail, value in zip(ins, values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        results.append([np.array(interpreter.get_tensor(o["index"])) for o in outs])
    return results


def child(pipe: Connection, log: str, model: bytes, trials: list, kernels: str, stateful: bool) -> None:
    """The body of the child process: sends (outputs, "") or (None, message)."""
    descriptor = os.open(log, os.O_WRONLY)
    os.dup2(descriptor, 2)
    try:
        pipe.send((invoke(model, trials, kernels, stateful), ""))
    except (RuntimeError, ValueError) as error:
        pipe.send((None, str(error)))
    pipe.close()


def isolated(model: bytes, trials: list, kernels: str, stateful: bool) -> tuple[list | None, str]:
    """Runs `invoke` in a child process; a crash becomes an error text."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = context.Process(target=child, args=(sender, log.name, model, trials, kernels, stateful))
        process.start()
        sender.close()
        try:
            answer = receiver.recv() if receiver.poll(TIME_LIMIT_S) else (None, f"no answer within {TIME_LIMIT_S} s")
        except EOFError:
            process.join()
            lines = [line for line in log.read().decode(errors="replace").splitlines() if not line.startswith("INFO")]
            answer = (None, f"process ended with {process.exitcode}: {' '.join(lines[-2:])}")
        if process.is_alive() and answer[0] is None:
            process.kill()
        process.join()
    return answer


def same(one: list[list[np.ndarray]], two: list[list[np.ndarray]]) -> bool:
    """Whether two runs gave the same bits."""
    return [[x.tobytes() for x in t] for t in one] == [[x.tobytes() for x in t] for t in two]


def define(trials: list[list[np.ndarray]], counted_by: int | None) -> list[list[np.ndarray]]:
    """Sets rows that LiteRT leaves undefined to zero: those from the count in output `counted_by` on."""
    if counted_by is not None:
        for outputs in trials:
            count = int(outputs[counted_by].reshape(-1)[0])
            for index, array in enumerate(outputs):
                if index != counted_by:
                    array[:, count:] = 0
    return trials


def tidy(message: str) -> str:
    """One line, without source locations, which differ from release to release."""
    message = re.sub(r"\(-?\d{6,} != -?\d{6,}\)", "", message)
    return re.sub(r"\s+", " ", re.sub(r"\S*/(\w+\.(?:cc|h)):\d+", r"\1 ", message)).strip()[:300]


def record(spec: Spec) -> Recording:
    """Builds the model and records it under both resolvers."""
    rng = rng_for(spec.name)
    trials = [
        [make_trial(feed, 2 if spec.uniform else t, rng) for feed in spec.graph.feeds] for t in range(spec.trials)
    ]
    result = Recording(spec.graph.build(), trials)
    if spec.unsound:
        result.reference_error = spec.unsound
        return result
    result.reference_kernels = spec.kernels
    outputs, result.reference_error = isolated(result.model, trials, spec.kernels, spec.stateful)
    if NOT_REGISTERED in result.reference_error:
        result.reference_kernels = "builtin"
        outputs, result.reference_error = isolated(result.model, trials, "builtin", spec.stateful)
    result.reference = define(outputs or [], spec.counted_by)
    again = isolated(result.model, trials, result.reference_kernels, spec.stateful)[0]
    if outputs and not same(result.reference, define(again or [], spec.counted_by)):
        result.reference_error = "results differ from run to run"
    if not result.reference_error:
        outputs, result.default_error = isolated(result.model, trials, "default", spec.stateful)
        result.default = define(outputs or [], spec.counted_by)
    result.reference_error, result.default_error = tidy(result.reference_error), tidy(result.default_error)
    return result

"""Tutorial 9: tune the kernels of a model for this machine.

    python tutorials/09_tune.py

Each product of a model runs on a kernel with parameters, such as how many pixels and channels to hold in registers. By
default, `build` takes the values that a cost model predicts to be fastest. Tuning measures, and logs what it finds.
"""

import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext import autotune

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_qdq.onnx"
module = qnn_ext.from_onnx(MODEL)
TRIALS = 6  # enough to see how it works; 32 to 64 find nearly all there is to gain

# 1. Tasks are the distinct products, each with the number of layers that share it.

tasks = autotune.extract_from_program(module, "native", threads=1)
for task in tasks:
    print(task)

# 2. The design space of a task: the legal configurations of its kernel's schedule, the default first.

task = tasks[0]
space = autotune.space_of(task)
print(f"{task.name}: {len(space)} configurations, the default is {space.default}")

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
log = folder / "tuning.jsonl"

# 3. A tuner proposes, the builder compiles, the runner compares each candidate with the interpreter and then times
#    it in turns with the default. Results are logged as soon as they are measured. The names are AutoTVM's.

option = autotune.measure_option(
    builder=autotune.LocalBuilder(timeout=60), runner=autotune.LocalRunner(repeat=8, timeout=60)
)
tuner = autotune.GATuner(task)
decision = tuner.tune(TRIALS, option, callbacks=[autotune.log_to_file(log)])
for result in tuner.results.values():
    print(f"   {result.configuration}: {result.gops:.0f} GOP/s, {result.ratio:.2f} of the default's time")
print(f"decided for {decision.best.configuration}")

# 4. Tuning again with the same log measures nothing twice, even after Ctrl-C or a power cut.

again = autotune.GATuner(task)
again.tune(TRIALS, option, callbacks=[autotune.log_to_file(log)])
print(f"the second time, {again.new} of {TRIALS} were measured")
assert again.new == 0
option.close()

# 5. `apply_history_best` hands the log to `build`. A log may hold records of many models and machines: those
#    for other workloads and targets are not applied.

with warnings.catch_warnings():
    warnings.simplefilter("error")  # there would be warnings about records that do not apply
    with autotune.apply_history_best(log):
        tuned = qnn_ext.build(module, num_threads=1)
image = np.random.default_rng(0).random(module.inputs[0].shape, dtype=np.float32)
np.testing.assert_array_equal(tuned(image), qnn_ext.Interpreter(module)(image))
print("the tuned model computes the same bits")

# 6. All tasks of a model in one call, or on the command line, with live progress, a table and a plot.

started = time.perf_counter()
report = autotune.tune(module, "native", trials=2, log=log, threads=1, tuner="ga")
print(report.markdown())
print(f"{time.perf_counter() - started:.0f} s")

for command in (
    ["qnn-ext", "tune", MODEL, "--threads", "1", "--trials", "2", "--tuner", "ga", "--log", log],
    ["qnn-ext", "compile", MODEL, "--threads", "1", "--tuning", log, "-o", folder / "digits.qnn"],
):
    print("$", *command, flush=True)
    subprocess.run(command, check=True)

# 7. Without a log to look after: a build that measures, the best few of each kernel by predicted cost. It keeps
#    what it finds in this user's cache (here in the log from above, so that little is left to measure), and the
#    next build takes it from there. On the command line: qnn-ext compile MODEL --measure

measured = qnn_ext.build(module, num_threads=1, measure=autotune.Measure(candidates=2, seconds=60, log=log))
np.testing.assert_array_equal(measured(image), tuned(image))

temporary.cleanup()

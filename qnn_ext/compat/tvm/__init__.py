"""tvm, as scripts up to TVM 0.19 import it: Relay, autotvm and runtime are the façade's, all else is TVM's own."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import tvm as _tvm

from ..absent import absent
from ..aliases import Aliases
from ..arrays import NDArray
from ..devices import cpu, cuda, device, gpu
from ..modules import IRModule

Aliases(__name__, "tvm").install()

from . import auto_scheduler, autotvm, contrib, ir, micro, nd, parser, relay, rpc, runtime, target, testing, transform  # noqa: E402

__version__ = _tvm.__version__
__all__ = [
    "IRModule",
    "NDArray",
    "auto_scheduler",
    "autotvm",
    "contrib",
    "cpu",
    "cuda",
    "device",
    "gpu",
    "ir",
    "micro",
    "nd",
    "parser",
    "relay",
    "rpc",
    "runtime",
    "target",
]
__all__ += ["testing", "transform"]

_INSTEAD = {
    "build": "qnn_ext.build compiles a model; TVM's own functions are compiled with tvm.compile of the package tvm",
    "driver": "the command line is qnn-ext",
    "context": "use tvm.device",
    "tir": "it is tvm.tirx in TVM 0.27",
}


def _own(name: str) -> Any:
    if name in ("build", "tir"):
        raise AttributeError(name)
    if hasattr(_tvm, name):
        return getattr(_tvm, name)
    try:
        return import_module(f"tvm.{name}")
    except ImportError:
        raise AttributeError(name) from None


__getattr__ = absent("tvm", _INSTEAD, _own)


RENAMED = {
    "autotvm.measure.measure": "autotvm.measure",
    "autotvm.measure.measure_methods": "autotvm.measure",
    "autotvm.task.dispatcher": "autotvm.task",
    "autotvm.task.relay_integration": "autotvm.task",
    "autotvm.task.space": "autotvm.task",
    "autotvm.task.task": "autotvm.task",
    "autotvm.tuner.ga_tuner": "autotvm.tuner",
    "autotvm.tuner.index_based_tuner": "autotvm.tuner",
    "autotvm.tuner.tuner": "autotvm.tuner",
    "autotvm.tuner.xgboost_tuner": "autotvm.tuner",
    "contrib.relay_viz.dot": "contrib.relay_viz",
    "contrib.relay_viz.interface": "contrib.relay_viz",
    "contrib.relay_viz.terminal": "contrib.relay_viz",
    "contrib.util": "contrib.utils",
    "ir.module": "ir",
    "relay.expr": "relay",
    "relay.expr_functor": "relay",
    "relay.frontend.mxnet": "relay.frontend",
    "relay.frontend.onnx": "relay.frontend",
    "relay.frontend.pytorch": "relay.frontend",
    "relay.frontend.tflite": "relay.frontend",
    "relay.function": "relay",
    "relay.op.nn": "relay.nn",
    "relay.op.nn.nn": "relay.nn",
    "relay.op.op": "relay.op",
    "relay.op.reduce": "relay.op",
    "relay.op.tensor": "relay.op",
    "relay.op.transform": "relay.op",
    "relay.param_dict": "relay",
    "relay.qnn.op.qnn": "relay.qnn.op",
    "relay.quantize._calibrate": "relay.quantize",
    "relay.quantize.kl_divergence": "relay.quantize",
    "relay.quantize.quantize": "relay.quantize",
    "relay.testing.init": "relay.testing",
    "relay.transform.transform": "relay.transform",
    "relay.ty": "relay",
    "runtime.ndarray": "nd",
    "target.target": "target",
    "transform.transform": "transform",
}
"""Modules that only grouped the files of TVM -> where their names are here."""

for _old, _now in RENAMED.items():
    _module = sys.modules[f"{__name__}.{_old}"] = import_module(f"{__name__}.{_now}")
    _parent, _, _child = _old.rpartition(".")
    vars(import_module(f"{__name__}.{_parent}")).setdefault(_child, _module)

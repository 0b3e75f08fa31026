"""Other runtimes' names over qnn_ext. Relay's: scripts for TVM up to 0.19 run with their imports changed, or with one
line added.

    from qnn_ext.compat import tvm                       instead of  import tvm
    from qnn_ext.compat.tvm import relay, autotvm        instead of  from tvm import relay, autotvm
    from qnn_ext.compat.tvm.contrib import graph_executor

    import qnn_ext.compat.install                        added before  import tvm  of a script that stays as it is

ONNX Runtime's session and LiteRT's interpreter have façades of the same kind:

    from qnn_ext.compat.onnxruntime import InferenceSession
    from qnn_ext.compat.litert import Interpreter

`torch_compile` is the backend that `torch.compile(model, backend="qnn_ext")` finds.

Below `tvm` lie the names under which such scripts import; what stands behind them is in the other files of this folder.
The façade is for what exists already: MIGRATION.md has the same calls in qnn_ext's own API.
"""

"""relay.transform and tvm.transform: passes that existed to be run before `build`, which now runs what is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .absent import refuse
from .modules import IRModule


class Pass:
    """A function of an IRModule."""

    def __init__(self, name: str, function: Callable[[IRModule], IRModule] = lambda mod: mod) -> None:
        self.info, self.name = self, name
        self._function = function

    def __call__(self, mod: IRModule) -> IRModule:
        if not isinstance(mod, IRModule):
            raise TypeError(f"{self.name} takes an IRModule of qnn_ext's façade, found {type(mod).__name__}")
        return self._function(mod)


class Sequential(Pass):
    """Passes one after the other."""

    def __init__(self, passes: Sequence[Pass] = (), opt_level: int = 0, name: str = "sequential", **_: Any) -> None:
        super().__init__(name, self._all)
        self.passes = list(passes)

    def _all(self, mod: IRModule) -> IRModule:
        for one in self.passes:
            mod = one(mod)
        return mod


class PassContext:
    """`with tvm.transform.PassContext(opt_level=3, config={…}):`. Builds always run all passes that apply, so levels
    and the names of Relay's passes change nothing."""

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Any = None,
        config: Mapping[str, Any] | None = None,
        trace: Any = None,
    ) -> None:
        self.opt_level, self.config = opt_level, dict(config or {})
        self.required_pass, self.disabled_pass = list(required_pass or ()), list(disabled_pass or ())

    def __enter__(self) -> PassContext:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def _made_pass(apply: Callable[[Any, IRModule], IRModule], method: str, function: Any, options: Any) -> Any:
    """A pass of a function, or of a class with a method, also as a decorator."""

    def make(of: Any) -> Any:
        name = options.get("name") or getattr(of, "__name__", "pass")
        if not isinstance(of, type):
            return Pass(name, lambda mod: apply(of, mod))

        def construct(*args: Any, **values: Any) -> Pass:
            made = of(*args, **values)
            return Pass(name, lambda mod: apply(getattr(made, method), mod))

        return construct

    return make if function is None else make(function)


def module_pass(pass_func: Any = None, opt_level: int | None = None, name: str | None = None, **_: Any) -> Any:
    """tvm.transform.module_pass: of a function of (module, context), or a class with `transform_module`."""
    return _made_pass(lambda of, mod: of(mod, PassContext()), "transform_module", pass_func, {"name": name})


def function_pass(pass_func: Any = None, opt_level: int | None = None, name: str | None = None, **_: Any) -> Any:
    """relay.transform.function_pass: of a function of (function, module, context), or a class with
    `transform_function`. The function is of expressions; an imported model is one call."""

    def apply(of: Any, mod: IRModule) -> IRModule:
        return IRModule(function=of(mod["main"], mod, PassContext()))

    return _made_pass(apply, "transform_function", pass_func, {"name": name})


def resolve(mod: IRModule) -> IRModule:
    """The module with its operators lowered now, under the current `requantize_config`, weights still inputs."""
    return IRModule.from_model(mod.model())


def nothing(name: str) -> Callable[..., Pass]:
    """A pass that `build` makes unnecessary: whatever its options, it leaves the module as it is."""

    def make(*args: Any, **options: Any) -> Pass:
        return Pass(name)

    make.__name__ = name
    make.__doc__ = f"{name}: nothing is left to do, build runs what is needed."
    return make


def refused(name: str, today: str) -> Callable[..., Pass]:
    """A pass whose result nothing could use."""

    def make(*args: Any, **options: Any) -> Pass:
        refuse(f"relay.transform.{name}", today)

    make.__name__ = name
    make.__doc__ = f"Raises NotHonouredError: {today}."
    return make


UNNECESSARY = [
    "AlterOpLayout",
    "AnnotateSpans",
    "AutoSchedulerLayoutRewrite",
    "BackwardFoldScaleAxis",
    "BatchingOps",
    "CanonicalizeCast",
    "CanonicalizeOps",
    "CombineParallelBatchMatmul",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "ConvertLayout",
    "DeadCodeElimination",
    "DefuseOps",
    "DivToMul",
    "DynamicToStatic",
    "EliminateCommonSubexpr",
    "EtaExpand",
    "FakeQuantizationToInteger",
    "FastMath",
    "FlattenAtrousConv",
    "FoldConstant",
    "FoldExplicitPadding",
    "FoldScaleAxis",
    "ForwardFoldScaleAxis",
    "FuseOps",
    "InferType",
    "Inline",
    "LambdaLift",
    "LazyGradientInit",
    "MetaScheduleLayoutRewrite",
    "PartialEvaluate",
    "RemoveStandaloneReshapes",
    "RemoveUnusedFunctions",
    "SimplifyExpr",
    "SimplifyFCTranspose",
    "SimplifyInference",
    "ToANormalForm",
    "ToBasicBlockNormalForm",
    "ToGraphNormalForm",
]
"""Passes of relay.transform that leave a module as it is."""

_IR = "a model is compiled as a whole for one target"
REFUSED = {
    "ToMixedPrecision": "quantize with qnn_ext.quantize, whose overrides set a layer's precision",
    "MergeComposite": _IR,
    "MergeCompilerRegions": _IR,
    "PartitionGraph": _IR,
    "AnnotateTarget": _IR,
    "gradient": "qnn_ext runs models; train in the framework",
    "FirstOrderGradient": "qnn_ext runs models; train in the framework",
    "ChangeBatch": "give the shape at import, shapes={input: shape}",
    "DenseToSparse": "there are no sparse kernels",
    "PlanDevices": "a model runs on one device",
}
"""Passes of relay.transform that cannot be honoured, and what to do instead."""

"""relay.dataflow_pattern: gone; any of its names says what there is today."""

from ...absent import absent

__all__: list[str] = []

__getattr__ = absent("relay.dataflow_pattern", everything="patterns see Relax: tvm.relax.dpl, over `module.ir`")

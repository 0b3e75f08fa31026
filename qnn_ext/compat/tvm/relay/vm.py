"""relay.vm."""

from ...absent import absent
from ...library import Executable
from ...library import compile_vm as compile

__all__ = ["Executable", "compile"]

__getattr__ = absent("relay.vm", {"VMCompiler": "use relay.vm.compile"})

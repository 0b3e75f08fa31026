"""Modules under a second name: `qnn_ext.compat.tvm.topi` is TVM's own topi, and after `install` `tvm.relay` is ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType


class Aliases(MetaPathFinder, Loader):
    """Finds modules below `prefix` as the modules of the same name below `source`.

    only: just these names below the prefix, and what is below them; if not given, all that `prefix` does not have

    It is asked first: Python's own finders would look into the folder of a module's parent, find the file there, and
    load it a second time under the second name.
    """

    def __init__(self, prefix: str, source: str, only: Sequence[str] = ()) -> None:
        self._prefix, self._source, self._only = prefix, source, tuple(only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aliases) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self._prefix, self._source, self._only))

    def install(self) -> None:
        """Take part in imports of this process; once, however often it is called."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self._prefix}."):
            return None
        name = fullname.removeprefix(f"{self._prefix}.")
        if not any(name == one or name.startswith(f"{one}.") for one in self._only) and (
            self._only or _has_own(fullname, path)
        ):
            return None
        try:
            if find_spec(f"{self._source}.{name}") is None:
                return None
        except (ImportError, ValueError):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(f"{self._prefix}.")
        sys.modules[module.__name__] = import_module(f"{self._source}.{name}")


def _has_own(fullname: str, path: Sequence[str] | None) -> bool:
    """Whether a module is in the folder of its parent, and that parent is no alias itself."""
    parent = fullname.rpartition(".")[0]
    return sys.modules[parent].__name__ == parent and PathFinder.find_spec(fullname, path) is not None

"""Imports that find no module, or a stand-in, while TVM is imported: it takes in more than a model needs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_READ_PYTORCH = ("tvm_ffi", "tvm.relax.base_py_module")


@contextlib.contextmanager
def instead(stand_ins: Mapping[str, ModuleType | None], forget: Iterable[str] = ()) -> Iterator[None]:
    """A context in which imports find stand-ins for modules, or no module where that is None. Afterwards, these and the
    modules in `forget` are as if never imported, unless they were loaded before."""
    replaced = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    left = [name for name in forget if name not in sys.modules]
    sys.modules.update(replaced)  # type: ignore[arg-type]  # None makes an import raise ImportError
    try:
        yield
    finally:
        for name in (*replaced, *left):
            sys.modules.pop(name, None)


class _WithoutPyTorch:
    """Finds the modules of TVM that import PyTorch wherever it is installed, a second and 200 MB, to take its tensors
    faster, and for functions in Python within a module of Relax, which nothing here has. They do without where the
    import fails."""

    def __init__(self) -> None:
        self._left = {name for name in _READ_PYTORCH if name not in sys.modules}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in self._left:
            return None
        self._left.remove(name)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Hiding(spec.loader)  # type: ignore[assignment]
        return spec


class _Hiding:
    """A loader that runs a module's code while PyTorch cannot be imported, unless it was before."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        with instead({"torch": None}):
            self._loader.exec_module(module)


def hide_pytorch_from_tvm() -> None:
    """From now on, importing TVM does not import PyTorch. A process that has already imported it keeps it."""
    sys.meta_path.insert(0, _WithoutPyTorch())  # type: ignore[arg-type]  # without the parts only old importers call

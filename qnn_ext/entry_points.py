"""Plugins that installed packages offer, found by their entry points. `qnn_ext.plugins` says what a plugin does.

A package names its plugins in pyproject.toml, each a module, or a function in it that is called without arguments:

    [project.entry-points."qnn_ext.plugins"]
    deformable = "acme_qnn.deformable"
"""

from __future__ import annotations

import threading
import warnings
from importlib.metadata import EntryPoint, entry_points

GROUP = "qnn_ext.plugins"

_lock = threading.RLock()
_loaded = False


def load_plugins() -> None:
    """Load all plugins, once in a process: importers, `build` and `quantize` call it first.

    A plugin that fails is left out, with a warning that names it: models that do not need it go on working.
    """
    global _loaded
    with _lock:
        if _loaded:
            return
        _loaded = True  # before loading, as a plugin may itself import a model
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
            _load(entry)


def _load(entry: EntryPoint) -> None:
    try:
        plugin = entry.load()
        if entry.attr:
            plugin()
    except Exception as error:  # strangers' code, which may raise anything
        package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
        warnings.warn(
            f"qnn_ext plugin '{entry.name}'{package} ({entry.value}) cannot be loaded and is left out: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )

"""Builds kept on disk: the key of a build, which covers all that its result depends on."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..errors import ArtifactError
from ..files.cache import Cache
from ..limits import current, using
from ..module import QnnModule
from ..running.engine import Engine
from ..running.model import Model
from ..targets.features import backend_of
from ..targets.host import host_features
from ..topi_int8.strategy import KnownChoice, candidates, current_choice, tiles_from
from ..topi_int8.workload import workload_from
from .digest import digest_of
from .program import Kept

WORTHWHILE = 0.5
"""Seconds that a build must take, without what is done when it is linked, for its result to be kept: an entry costs
linking and disk space."""

_IMPORTED = time.time()


def cached(
    cache: Cache | None,
    modules: Sequence[QnnModule],
    target: Target,
    asked: bool,
    compiled: Callable[[Kept | None], list[Engine]],
    jobs: int | None = None,
) -> list[Engine]:
    """The engines that `compiled` returns for modules and a target, taken from the cache if that has them. They share
    their weights if there are several.

    asked:    whether the target's number of threads was asked for, on which the engine depends
    compiled: gets where code is kept, if it is
    jobs:     threads that compile what is kept; None: one for each core
    """
    key = None if cache is None else _key(modules, target, asked)
    if cache is None or key is None:
        return compiled(None)
    content = cache.get(key)
    if content is not None:
        limits, context, choice = current(), PassContext.current(), current_choice()

        def again() -> list[Engine]:
            with using(limits), context, tiles_from(choice):
                return compiled(None)

        try:
            engines = Engine.from_cache(content, [module.source for module in modules], again)
            _recall(engines, target)
            return engines
        except ArtifactError:  # not written by `for_cache`
            cache.drop(key)
    started = time.monotonic()
    engines = compiled(kept_in(cache, jobs))
    if time.monotonic() - started >= WORTHWHILE:
        try:
            cache.put(key, Engine.for_cache(engines))
        except ArtifactError:  # there is no linker for it
            pass
        except Exception as error:  # in what compiles a program in parts; in one piece it may still compile
            warnings.warn(
                "the model could not be compiled in parts, so each process that runs it will compile it again, in one "
                f"piece; please report this: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return engines


def kept_in(cache: Cache | None, jobs: int | None) -> Kept | None:
    """Where the code of kernels is kept, if what compiles them is known."""
    versions = _versions()
    return None if cache is None or versions is None else Kept(cache, json.dumps(versions, sort_keys=True), jobs)


def _recall(engines: Sequence[Engine], target: Target) -> None:
    """Ask for the tiles of the engines' kernels, as the build did: what chooses them says what it has chosen."""
    if current_choice() is not None:
        for kernel in (kernel for engine in engines for kernel in engine.kernels):
            if kernel.workload:
                candidates(workload_from(kernel.workload), target)


def _key(modules: Sequence[QnnModule], target: Target, asked: bool) -> str | None:
    """The digest of everything that a build depends on; None if that cannot be known.

    Builds for GPUs are not kept: their kernels are compiled when they are loaded. Nor are those with plugins, whose
    code may be anything, with tiles from a function, or within instruments of TVM, which see every pass.
    """
    context, versions = PassContext.current(), _versions()
    choice = current_choice()
    tuned = choice.digest(target) if isinstance(choice, KnownChoice) else ""
    foreign = (choice and not tuned) or "qnn_ext.plugins" in sys.modules or context.instruments
    if backend_of(target).grid or foreign or versions is None:
        return None
    settings = {
        "versions": versions,
        "target": str(target),
        "asked": asked,
        "tiles": tuned,
        "limits": asdict(current()),
        "passes": [context.opt_level, *map(str, (context.config, context.required_pass, context.disabled_pass))],
        "models": [Model.of(replace(module, source=""), (), {}).to_json() for module in modules],
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for state in modules[0].states:  # those of all others
        digest.update(np.ascontiguousarray(state.initial).tobytes())
    try:
        for module in modules:
            digest.update(digest_of(module.ir))
    except Exception:  # a module with what TVM cannot write down
        return None
    return digest.hexdigest()


@cache
def _versions() -> dict[str, str] | None:
    """What compiles: this package, TVM, LLVM and NumPy, which folds constants, on this CPU. None if the package's own
    code is not at hand, or was changed after it was imported."""
    digest, newest = hashlib.sha256(), -math.inf
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        newest = max(newest, path.stat().st_mtime)
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    if not -math.inf < newest < _IMPORTED:
        return None
    return {
        "qnn_ext": digest.hexdigest(),
        "tvm": tvm.__version__,
        "tvm_ffi": tvm_ffi.__version__,
        "llvm": str(tvm.target.codegen.llvm_version_major()),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "host": " ".join([platform.machine(), *sorted(host_features())]),
    }

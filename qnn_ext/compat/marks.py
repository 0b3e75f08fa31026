"""tvm.testing's decorators of tests by what they run on: here that is the CPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import tvm

TARGET = "llvm"
"""What tests are run for that are written for several targets."""


def _as_decorator(apply: Callable[[Any], Any]) -> Callable[..., Any]:
    """A decorator that is written with parentheses or without."""

    def decorate(*args: Any, **_: Any) -> Any:
        return apply(args[0]) if args and callable(args[0]) else apply

    return decorate


uses_gpu = _as_decorator(lambda test: test)
exclude_targets = known_failing_targets = _as_decorator(lambda test: test)


def parametrize_targets(*targets: Any) -> Any:
    """The test's arguments `target` and `dev`: "llvm" and the CPU, whatever other targets are named."""
    import pytest

    named = [target for target in targets if isinstance(target, str)]
    kept = [target for target in named if target.split()[0] == TARGET] if named else [TARGET]
    mark = pytest.mark.parametrize(("target", "dev"), [(target, tvm.cpu(0)) for target in kept])
    return mark(targets[0]) if targets and callable(targets[0]) else mark


def requires_package(*names: str) -> Any:
    """Skips the test where one of the packages is missing."""
    import pytest

    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def requirement(name: str) -> Callable[..., Any]:
    """requires_cuda and its siblings: skips the test where tvm.testing.env does not find the feature.

    Raises AttributeError for names that are no requirement.
    """
    feature = name.removeprefix("requires_")
    if feature == name:
        raise AttributeError(name)

    def mark(test: Any) -> Any:
        import pytest

        found = getattr(import_module("tvm.testing").env, f"has_{feature}", lambda: False)
        return pytest.mark.skipif(not found(), reason=f"needs {feature}")(test)

    return _as_decorator(mark)

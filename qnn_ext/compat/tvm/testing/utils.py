"""tvm.testing.utils."""

from typing import Any

__all__ = ["install_request_hook"]


def install_request_hook(depth: int = 0, *_: Any, **__: Any) -> None:
    """Nothing: on TVM's own servers it looked downloads up in a cache."""

"""MXNet frontend: `from_mxnet` reads `-symbol.json` and `.params` itself; MXNet is not needed."""

from .importer import from_mxnet

__all__ = ["from_mxnet"]

"""relay.frontend.pytorch_utils."""

import re

from ....absent import absent

__all__ = ["is_version_greater_than"]


def is_version_greater_than(ver: str) -> bool:
    """Whether PyTorch is newer than a version."""
    import torch

    return _numbers(torch.__version__) > _numbers(ver)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3]]


__getattr__ = absent("relay.frontend.pytorch_utils")

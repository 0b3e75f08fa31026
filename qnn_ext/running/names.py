"""Short names of tensors, for pictures and tables; the full ones are shown beside them on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_MOST = 0.6  # the share of names that must start with a word before it is left out


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name without the word that most of them start with, and, where it joins the names of several fused layers,
    only with the first of these:

        MobilenetV2_expanded_conv_1_expand_Relu6_MobilenetV2_expanded_conv_1_expand_BatchNorm_Fold_bias
        → expanded_conv_1_expand_Relu6

    Names that would become equal stay as they are.
    """
    unique = list(dict.fromkeys(names))
    starts = Counter(match[0] for name in unique if (match := re.match(r"[A-Za-z]\w*?[_/.](?=[A-Za-z])", name)))
    word, found = starts.most_common(1)[0] if starts else ("", 0)
    if found < max(2, _MOST * len(unique)):
        return {name: name for name in unique}
    shorter = {name: _without(name, word) for name in unique}
    times = Counter(shorter.values())
    return {name: short if times[short] == 1 else name.removeprefix(word) for name, short in shorter.items()}


def _without(name: str, word: str) -> str:
    parts = name.split(word)
    return next((part.rstrip("_/.;") for part in parts if part), name) if name.startswith(word) else name

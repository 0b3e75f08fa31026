"""Asks MXNet, which runs in a process with its own Python."""

from __future__ import annotations

from functools import cache

import numpy as np

from qnn_ext.evaluation.mxnet import Mxnet, MxnetError

from ..recipe import Case, FrameworkRefuses

server = cache(Mxnet)


def run_mxnet(case: Case) -> list[list[np.ndarray]]:
    """MXNet's outputs of every trial."""
    arrays = {f"{trial}/{name}": array for trial, values in enumerate(case.trials)
              for name, array in zip(case.facts["shapes"], values, strict=True)}  # fmt: skip
    message = {"symbol": np.array(case.content), **case.facts["params"], **arrays}
    try:
        answer = server().ask(message)
    except MxnetError as error:
        raise FrameworkRefuses(str(error)) from error
    counts = [len([key for key in answer if key.startswith(f"{t}/")]) for t in range(len(case.trials))]
    return [[answer[f"{trial}/{index}"] for index in range(count)] for trial, count in enumerate(counts)]

"""One page per model: its graph, the time and memory of its kernels, and what quantization costs, in one HTML file.

    page("model.html", module)
    page("both.html", {"a": qnn_ext.load("a.qnn"), "b": qnn_ext.load("b.qnn")}, profile=True)

`collect` gathers what is known as JSON values, `rendering` and `templates` show it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..compiling.build import TargetLike
from ..module import QnnModule
from ..quantize.config import QConfig
from ..running.engine import Engine
from .collect import Request, analysis_data, build_report, model_report
from .rendering import write_page

__all__ = ["Request", "analysis_data", "build_report", "model_report", "page", "write_page"]


def page(
    path: str | os.PathLike,
    models: QnnModule | Engine | Mapping[str, QnnModule | Engine],
    *,
    title: str = "",
    profile: bool = False,
    data: Any = None,
    labels: Any = None,
    qconfig: QConfig | None = None,
    float_model: QnnModule | None = None,
    samples: int = 32,
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
) -> None:
    """Write one HTML file about a model, or about several side by side.

    models:  a module, which is built for the targets, an engine, or several of these by name. Only a module's operators
             before fusion are known
    profile: whether to time the model, its kernels and what this machine can reach
    data:    real values, as `quantize` takes them. A float module is quantized with them, and the page shows the error
             of each layer and the range of each tensor; with labels, also its accuracy
    labels:  the right answers, as `qnn_ext.accuracy` takes them; by default those in the data
    qconfig: how a float module is quantized
    float_model: the float version of a model that is quantized already: with data, its error is measured against it
    samples: on how many batches errors are measured
    target, num_threads: as for `build`

    Raises what `build`, `quantize` and `accuracy` raise, and QnnError if the file cannot be written.
    """
    request = Request(profile=profile, data=data, labels=labels, config=qconfig, floating=float_model, samples=samples)
    named = models if isinstance(models, Mapping) else {"": models}
    reports = [model_report(model, request, name, target, num_threads) for name, model in named.items()]
    write_page(path, reports, title or ", ".join(report["name"] for report in reports))

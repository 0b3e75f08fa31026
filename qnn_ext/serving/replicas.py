"""Copies of a model on the machines of a Ray cluster, behind one KServe server. Needs `pip install 'kserve[ray]'`.

model = replicated("digits", "models/digits/1/model.qnn", replicas=8)
kserve.ModelServer().start([model])
"""

from __future__ import annotations

import os
from typing import Any

from kserve.ray import RayModel
from ray import serve

from ..running.engine import Engine, load
from .kserve import QnnModel


class _Replica(QnnModel):
    """A model that is ready as soon as it is there."""

    def __init__(self, name: str, engine: Engine, streams: int, num_threads: int) -> None:
        super().__init__(name, engine, streams, num_threads)
        self.load()


def replicated(
    name: str, path: str | os.PathLike, replicas: int, streams: int = 1, num_threads: int = 1, **options: Any
) -> RayModel:
    """`replicas` copies of a model, among which Ray Serve divides the requests; each has streams × num_threads cores.

    options: of `ray.serve.deployment`, such as autoscaling_config, max_ongoing_requests, ray_actor_options

    It uses the cluster that `ray.init` has connected to, or starts Ray on this machine. The file is read here, and its
    CPU instructions must be those of all machines, which need qnn_ext and kserve.
    """
    options.setdefault("ray_actor_options", {"num_cpus": streams * num_threads})
    deployment = serve.deployment(_Replica, name=name, num_replicas=replicas, **options)
    application = deployment.bind(name, load(path), streams, num_threads)
    model = RayModel(name, serve.run(application, name=name, route_prefix=None))
    model.ready = True
    return model

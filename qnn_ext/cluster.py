"""Other machines, through Ray: a `map` for data sets in shards. Needs `pip install 'qnn-ext[cluster]'`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .errors import QnnError


def ray_map(**options: Any) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """A map (function, items) → results, in the order in which they are ready, whose calls are tasks of a Ray cluster.

        shards = quantize.Shards(folders, cluster.ray_map(num_cpus=4), num_threads=4)

    options: of `ray.remote`: num_cpus (default 1: give it as many as a model has threads), max_retries, resources …

    It uses the cluster that `ray.init` has connected to, or that RAY_ADDRESS names, or starts Ray on this machine. The
    workers need qnn_ext, and CPUs with the instructions of this one. Raises QnnError without Ray and for workers that
    died, and what a call raised; the tasks that have not ended are cancelled then.
    """
    try:
        import ray
    except ImportError as error:
        raise QnnError(f"mapping over a cluster needs Ray: pip install 'qnn-ext[cluster]' ({error})") from error

    def mapped(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        task = ray.remote(**{"num_cpus": 1, **options})(_call)
        shared = ray.put(function)  # once for all tasks: it holds a model
        waiting = [task.remote(shared, item) for item in items]
        try:
            while waiting:
                (ready,), waiting = ray.wait(waiting)
                yield _result(ray, ready)
        finally:
            for one in waiting:
                ray.cancel(one, force=True)

    return mapped


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _result(ray: Any, ready: Any) -> Any:
    """What a task returned. Raises what it raised."""
    try:
        return ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise QnnError(
            f"a Ray worker ended without an answer: {' '.join(str(error).split())[:300]}: if memory ran out, make the "
            "shards smaller or ask for more with ray_map(memory=…)"
        ) from None

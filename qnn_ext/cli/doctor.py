"""`qnn-ext doctor`: what this machine runs and compiles for, and what is not installed. TVM is not imported."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import click
from rich.console import Console

from .. import __version__
from ..errors import ArtifactError
from ..processes import cores
from ..targets import cuda_compiler, gpus, host, linking
from ..targets.architectures import host_architecture
from ..targets.backend import Backend, Product
from ..targets.families import CPUS, backend_of_architecture
from .common import json_option, out, print_json


@dataclass(frozen=True)
class Extra:
    """An extra of the package: what it is for, and the modules, or packages without one, that come with it."""

    purpose: str
    parts: tuple[str, ...]


EXTRAS = dict(
    tflite=Extra("read TFLite models", ("tflite",)),
    onnx=Extra("read and write ONNX models", ("onnx",)),
    torch=Extra("read PyTorch models, train for few bits", ("torch", "torchao")),
    tune=Extra("tune with boosted trees, tune over RPC", ("cloudpickle", "psutil", "tornado", "xgboost")),
    cuda=Extra("compile for GPUs without the CUDA toolkit", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm")),
    sign=Extra("sign and verify .qnn files", ("cryptography",)),
    llm=Extra("read the tokenizers of language models", ("sentencepiece", "tokenizers")),
    serve=Extra("serve models over HTTP", ("fastapi", "httpx", "uvicorn")),
    kserve=Extra("serve models behind the Open Inference Protocol", ("kserve",)),
    cluster=Extra("calibrate on many machines", ("ray",)),
    bench=Extra("compare with other frameworks, plot", ("ai_edge_litert", "onnxruntime", "openvino", "matplotlib")),
)
CROSS = tuple(backend for backend in CPUS if backend.triple)  # what models are compiled for


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show what this machine can run and compile for, and what is missing with the command that installs it.

    \b
    Examples:
      qnn-ext doctor
      qnn-ext doctor --json
    """
    data = {
        "versions": _versions(),
        "cpu": _cpu(),
        "gpu": _gpu(),
        "linkers": [_linker(backend) for backend in CROSS],
        "emulators": [_emulator(backend) for backend in CROSS if backend.architecture != host_architecture()],
        "extras": [_extra(name, extra) for name, extra in EXTRAS.items()],
    }
    if as_json:
        print_json(data)
    else:
        _print(out(), data)


def _versions() -> dict[str, str | None]:
    names = ("apache-tvm", "apache-tvm-ffi", "numpy")
    return {"qnn-ext": __version__, "python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    backend = backend_of_architecture(host_architecture())
    caches = host.host_caches()
    return {
        "name": host.cpu_name(),
        "architecture": host_architecture(),
        "cores": cores.allowed(),
        "quota": cores.quota(),
        "memory": host.memory_bytes(),
        "caches": caches and asdict(caches),
        "features": sorted(host.host_features()),
        "products": [product.name for product in backend.products if _has(backend, product)],
        "float_products": [product.name for product in backend.float_products if _has(backend, product)],
    }


def _has(backend: Backend, product: Product) -> bool:
    """Whether this CPU has a product's instructions. Those that the family always has are in no list of features."""
    here = host.host_features()
    return any(
        all(name in here or name not in backend.instruction_sets for name in features) for features in product.features
    )


def _gpu() -> dict[str, Any]:
    architecture, problem = gpus.of_this_machine()
    return {"architecture": architecture, "problem": problem, "compiler": cuda_compiler.available()}


def _linker(backend: Backend) -> dict[str, Any]:
    """What links models for a family, or how to get it."""
    command, problem = None, ""
    try:
        command = linking.cross_compiler(backend.architecture)
        if command is None and (own := _own_compiler()):
            command = [own]
        if command is None:
            problem = "no C compiler on PATH: apt-get install g++"
    except ArtifactError as error:
        problem = str(error)
    return {"architecture": backend.architecture, "command": command and shlex.join(command), "problem": problem}


def _own_compiler() -> str | None:
    """The compiler that TVM links with."""
    names = ("g++", "gcc", "clang++", "clang", "c++", "cc")
    return os.environ.get("CXX") or os.environ.get("CC") or next(filter(None, map(shutil.which, names)), None)


def _emulator(backend: Backend) -> dict[str, Any]:
    """What runs programs of another family: QEMU's user mode; its boards for those without an operating system."""
    if backend.concurrent:
        program, package = f"qemu-{backend.architecture}", "qemu-user"
    else:
        program = package = "qemu-system-arm"
    path = shutil.which(program)
    problem = "" if path else f"no {program}: apt-get install {package}"
    return {"architecture": backend.architecture, "command": path, "problem": problem}


def _extra(name: str, extra: Extra) -> dict[str, Any]:
    missing = [part for part in extra.parts if find_spec(part) is None and _version(part) is None]
    return {
        "extra": name,
        "purpose": extra.purpose,
        "missing": missing,
        "command": f"pip install 'qnn-ext[{name}]'" if missing else "",
    }


def _print(console: Console, data: dict[str, Any]) -> None:
    def line(name: str, text: str) -> None:
        console.print(f"{name:<10} {text}", markup=False, soft_wrap=True)

    line("versions", ", ".join(f"{name} {number or 'missing'}" for name, number in data["versions"].items()))
    cpu, gpu = data["cpu"], data["gpu"]
    memory = "" if cpu["memory"] is None else f", {cpu['memory'] / 2**30:.1f} GiB of memory"
    quota = "" if cpu["quota"] is None else f", of which this control group has the time of {cpu['quota']:g}"
    line("CPU", f"{cpu['name']}, {cpu['architecture']}, {cpu['cores']} cores{quota}{memory}")
    line("", f"products of integers, fastest first: {', '.join(cpu['products'])}")
    line("", f"products of floats, fastest first: {', '.join(cpu['float_products']) or 'loops'}")
    line("", f"instruction sets: {', '.join(cpu['features']) or 'baseline'}")
    line("GPU", gpu["architecture"] or gpu["problem"])
    line("", f"compiler of GPU code: {gpu['compiler'] or 'none, ' + COMPILER_REMEDY}")
    for kind, title in (("linkers", "links for"), ("emulators", "emulates")):
        for found in data[kind]:
            line(title, f"{found['architecture']}: {found['command'] or found['problem']}")
    for found in data["extras"]:
        missing = f"missing {', '.join(found['missing'])}: {found['command']}" if found["missing"] else "installed"
        line("extra", f"{found['extra']} ({found['purpose']}): {missing}")


COMPILER_REMEDY = "install the CUDA toolkit or pip install 'qnn-ext[cuda]'"

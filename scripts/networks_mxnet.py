"""Whole networks of the Gluon model zoo, float and quantized by MXNet, for testing the frontend.

    pip install mxnet==1.9.1 numpy==1.23.5 scipy==1.10.1                       # Python 3.8: MXNet's last release
    OMP_NUM_THREADS=1 python -m scripts.networks_mxnet make DIR [--only resnet18_v1 ...] [--size 224]
    python -m scripts.networks_mxnet compare DIR                                # where qnn_ext is installed

Weights are random, drawn from a fixed seed so that activations keep their magnitude with depth; batch normalization has
the statistics of random images. `make` writes NAME-symbol.json and NAME-0000.params (quantized: "auto" dtypes, naive
calibration), the same for NAME-float, and NAME_io.npz: x, y (MXNet's quantized output), y_fp32. `compare` imports,
builds and runs them, and prints how many outputs differ from MXNet's.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import numpy as np

SEED = 7
CALIBRATION_IMAGES = 8
QUANTIZED = (
    "resnet18_v1",
    "mobilenet1_0",
    "mobilenet_v2_1_0",
    "resnet18_v2",
    "densenet121",
    "squeezenet1_1",
    "inception_v3",
)
FLOAT_ONLY = ("alexnet", "vgg11_bn")


# ---- with MXNet --------------------------------------------------------------------------------------------------


def make(out: Path, names: list[str], size: int) -> None:
    """Write the networks to the folder."""
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"  # run every graph as written
    logging.disable(logging.CRITICAL)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        side = 299 if name == "inception_v3" else size
        if name in ("densenet121", "squeezenet1_1"):
            side = max(side, 224)  # the window of their last pooling is fixed
        make_network(name, side, out)
        print(name, flush=True)


def make_network(name: str, side: int, out: Path) -> None:
    """One network: float, quantized if listed in `QUANTIZED`, and MXNet's outputs."""
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    random = np.random.RandomState(SEED)
    mx.random.seed(SEED)
    np.random.seed(SEED)  # the source of MXNet's initializers
    shape = (1, 3, side, side)
    network = getattr(vision, name)(classes=100)
    network.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    network.hybridize()
    with mx.autograd.record():  # batch normalization takes the statistics of its data
        for _ in range(10):
            network(mx.nd.array(random.randn(4, *shape[1:]))).wait_to_read()
    x = random.randn(*shape).astype(np.float32)
    network(mx.nd.array(x)).wait_to_read()
    network.export(str(out / (name + "-float")), 0)
    model = mx.model.load_checkpoint(str(out / (name + "-float")), 0)
    arrays = {"x": x, "y_fp32": run(model, x)}
    if name in QUANTIZED:
        quantized = quantize(model, random.randn(CALIBRATION_IMAGES, *shape[1:]).astype(np.float32))
        mx.model.save_checkpoint(str(out / name), 0, *quantized)
        arrays["y"] = run(quantized, x)
    np.savez_compressed(out / (name + "_io.npz"), **arrays)


def quantize(model, images):
    """(symbol, args, aux) by MXNet's oneDNN quantizer."""
    import mxnet as mx
    from mxnet.contrib.quantization import quantize_model_mkldnn

    symbol, args, aux = model
    return quantize_model_mkldnn(
        sym=symbol,
        arg_params=args,
        aux_params=aux,
        data_names=("data",),
        label_names=None,
        ctx=mx.cpu(),
        calib_mode="naive",
        calib_data=mx.io.NDArrayIter(images, batch_size=1),
        num_calib_examples=len(images),
        quantized_dtype="auto",
        quantize_mode="smart",
    )


def run(model, x):
    """The output of (symbol, args, aux)."""
    import mxnet as mx

    symbol, args, aux = model
    module = mx.mod.Module(symbol, label_names=None, context=mx.cpu())
    module.bind(for_training=False, data_shapes=[("data", x.shape)])
    module.set_params(args, aux)
    module.forward(mx.io.DataBatch([mx.nd.array(x)], None), is_train=False)
    return module.get_outputs()[0].asnumpy()


# ---- with qnn_ext ------------------------------------------------------------------------------------------------


def compare(out: Path, names: list[str]) -> bool:
    """Print a line per network; returns whether all that must be equal is."""
    fine = True
    for name in names:
        path = out / (name + "_io.npz")
        if not path.exists():
            continue
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        fine &= compare_float(out, name, arrays)
        if "y" in arrays:
            fine &= compare_quantized(out, name, arrays)
    return fine


def compare_float(out: Path, name: str, arrays: dict[str, np.ndarray]) -> bool:
    """The float network, built, compared with MXNet's float32."""
    import qnn_ext

    prefix = str(out / (name + "-float"))
    module = qnn_ext.from_mxnet(prefix + "-symbol.json", prefix + "-0000.params", {"data": arrays["x"].shape})
    y = qnn_ext.build(module)(arrays["x"])
    error = float(np.abs(y - arrays["y_fp32"]).max() / arrays["y_fp32"].std())
    print(f"{name:18} float     largest difference {error:.1e} of the outputs' deviation", flush=True)
    return error < 1e-3


def compare_quantized(out: Path, name: str, arrays: dict[str, np.ndarray]) -> bool:
    """Both sum modes: "mxnet" must equal MXNet in every output, "intended" is compared with the float network."""
    import qnn_ext

    prefix, results = str(out / name), {}
    for mode in ("mxnet", "intended"):
        module = qnn_ext.from_mxnet(prefix + "-symbol.json", prefix + "-0000.params", {"data": arrays["x"].shape}, mode)
        results[mode] = qnn_ext.build(module)(arrays["x"])
    wrong = int((results["mxnet"] != arrays["y"]).sum())
    quality = ", ".join(f"{mode} {sqnr(arrays['y_fp32'], y):.2f} dB" for mode, y in results.items())
    print(
        f"{name:18} quantized {wrong} of {arrays['y'].size} outputs differ; SQNR against float: {quality}", flush=True
    )
    return wrong == 0


def sqnr(reference: np.ndarray, value: np.ndarray) -> float:
    """Signal over quantization noise in dB."""
    return float(10 * np.log10((reference**2).sum() / ((reference - value) ** 2).sum()))


def main() -> int:
    """Make or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[*QUANTIZED, *FLOAT_ONLY], help="networks to write (all)")
    parser.add_argument("--size", type=int, default=224, help="height and width of the image (%(default)s)")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder, options.only, options.size)
        return 0
    return 0 if compare(options.folder, options.only) else 1


if __name__ == "__main__":
    sys.exit(main())

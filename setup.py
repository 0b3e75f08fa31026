"""Packaging of qnn_ext: pure Python on the official apache-tvm wheel."""

from pathlib import Path

from setuptools import find_packages, setup

TFLITE = ["tflite>=2.18"]
ONNX = ["onnx>=1.18"]
TORCH = ["torch==2.13.0", "torchao>=0.18"]
# On Linux, xgboost itself depends on 400 MB of NVIDIA's NCCL; its CPU package has no wheels for macOS
XGBOOST = ["xgboost-cpu>=3; sys_platform != 'darwin'", "xgboost>=3; sys_platform == 'darwin'"]
TUNE = ["cloudpickle", "psutil", "tornado>=6", *XGBOOST]
BENCH = ["ai-edge-litert>=2.1", "onnxruntime>=1.20", "openvino>=2026", "matplotlib>=3.8"]
SERVE = ["fastapi>=0.115", "httpx>=0.27", "uvicorn>=0.30"]
KSERVE = ["kserve>=0.15"]  # brings 200 MB and protobuf below 7: neither in `test` nor in `all`
CLUSTER = ["ray>=2.40"]  # 80 MB: neither in `test` nor in `all`
# Compiling CUDA source to PTX and showing its machine code without the CUDA toolkit; NVIDIA has no wheels for macOS
CUDA = [f"{name}>=13; sys_platform != 'darwin'" for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm")]
LLM = ["sentencepiece>=0.2", "tokenizers>=0.21"]
SIGN = ["cryptography>=42"]
PASCAL = ["nvidia-cuda-nvrtc-cu12; sys_platform != 'darwin'"]  # GPUs before sm_75, which CUDA 13 dropped
DOCS = [
    "furo>=2025",
    "ipykernel>=6",
    "jupytext>=1.16",
    "matplotlib>=3.8",  # the tutorials' plots
    "myst-nb>=1.3",
    "sphinx>=8",
    "sphinx-copybutton",
    "sphinx-design",
]
TEST = [
    "pytest>=8",
    "pytest-xdist",
    "hypothesis",
    "grimp",
    "import-linter",
    "ruff",
    "mypy",
    "playwright>=1.45",  # 45 MB, without a browser
    *SIGN,
    *LLM,
    *BENCH,
    *SERVE,
    *CUDA,
    *PASCAL,
    *DOCS,
]

SOURCE = Path(__file__).with_name("qnn_ext") / "version.py"
VERSION = SOURCE.read_text(encoding="utf-8").partition('VERSION = "')[2].partition('"')[0]

setup(
    name="qnn-ext",
    version=VERSION,
    description="Integer execution of pre-quantized neural networks on Apache TVM",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The qnn_ext authors",
    license="Apache-2.0",
    keywords=["quantization", "int8", "inference", "neural networks", "compiler", "TVM", "TFLite", "ONNX", "PyTorch"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Compilers",
        "Typing :: Typed",
    ],
    # Relative to the source distribution until the project has a public address
    project_urls={"Changelog": "CHANGELOG.md", "Documentation": "docs/index.md", "Security": "SECURITY.md"},
    # An editable installation is a path, as of any package: with setuptools' default, a hook that comes last, a folder
    # named qnn_ext where Python starts, such as a clone, would silently be imported instead, as an empty package
    options={"editable_wheel": {"mode": "compat"}},
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["qnn_ext", "qnn_ext.*"]),
    py_modules=["qnn_ext_program"],
    package_data={"qnn_ext": ["py.typed", "data/*", "report/templates/*", "export_c/templates/*"]},
    install_requires=[
        "apache-tvm==0.27.0.post1",
        # 0.1.15 segfaults in Schedule.tensorize, tvm.ir.save_json and MetaSchedule
        "apache-tvm-ffi==0.1.14.post1",
        "numpy>=1.26",
        "click>=8.1",
        "jinja2>=3",
        "rich>=13",
        "pillow>=10",
    ],
    extras_require={
        "tflite": TFLITE,
        "onnx": ONNX,
        "torch": TORCH,
        "tune": TUNE,
        "cuda": CUDA,
        "sign": SIGN,
        "llm": LLM,
        "bench": BENCH,
        "serve": SERVE,
        "kserve": KSERVE,
        "cluster": CLUSTER,
        "docs": DOCS,
        "test": TEST,
        "all": TFLITE + ONNX + TORCH + TUNE + CUDA + SIGN + LLM + BENCH + SERVE,
    },
    entry_points={
        "console_scripts": ["qnn-ext = qnn_ext_program:main"],
        "torch_dynamo_backends": ["qnn_ext = qnn_ext.compat.torch_compile:backend"],
    },
)

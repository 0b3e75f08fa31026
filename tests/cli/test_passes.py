"""A build as it is shown: its progress, what each pass changed, and the module after each."""

import json
import sys
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.cli.passes import Passes
from qnn_ext.compiling.watch import watching

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_int8.tflite"


@pytest.mark.parametrize("kept", [True, False])
def test_progress_only_grows_up_to_one(tmp_path, monkeypatch, kept):
    monkeypatch.delitem(sys.modules, "qnn_ext.plugins", raising=False)  # builds with plugins are not kept
    told = []
    with watching(Passes(lambda stage, share: told.append((stage, share)), targets=2)):
        module = qnn_ext.from_onnx(DATA / "digits_transformer_qdq.onnx")
        qnn_ext.build(module, ["native", "x86-64"], cache=tmp_path if kept else False).save(tmp_path / "model.qnn")
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[0] == 0.0 and 0.6 < shares[-1] <= 1.0
    stages = {stage for stage, _ in told}
    assert {"legalize", "canonicalize", "fuse", "lower", "program", "machine code"} <= stages


def test_nobody_watches_after_the_context():
    told = []
    with watching(Passes(lambda *stage: told.append(stage))):
        pass
    qnn_ext.build(qnn_ext.from_tflite(MODEL), cache=False)
    assert not told


def test_verbose_says_what_each_pass_changed(cli, tmp_path):
    options = "-o", tmp_path / "model.qnn", "--threads", "1"
    code, out, _ = cli("compile", MODEL, *options, "--verbose", "--json")
    passes = {row["pass"]: row for row in json.loads(out)["passes"]}
    assert code == 0 and all(row["seconds"] > 0 for row in passes.values())
    assert "−5 qnn.conv2d" in passes["canonicalize"]["changed"] or "−7 qnn.conv2d" in passes["canonicalize"]["changed"]
    assert passes["drop_observers"]["changed"] == "" and passes["program"]["changed"] is None
    assert "PrimFunc" in passes["lower"]["changed"]
    code, out, _ = cli("compile", MODEL, *options, "--verbose")
    assert code == 0 and "canonicalize" in out and "nothing" in out
    code, out, _ = cli("compile", MODEL, *options, "--json")
    assert code == 0 and "passes" not in json.loads(out)


def test_dump_ir_writes_modules_that_tvm_reads(cli, fails, tmp_path):
    folder = tmp_path / "new" / "modules"
    code, _, _ = cli("compile", MODEL, "-o", tmp_path / "model.qnn", "--dump-ir", folder)
    files = sorted(file.name for file in folder.iterdir())
    assert code == 0 and files[0] == "01_unrolled.py" and any(name.endswith("_canonicalize.py") for name in files)
    text = next(folder.glob("*_canonicalize.py")).read_text()
    assert "qnn.conv2d_accumulate" in text and "I.ir_module" in text
    assert "not empty" in fails("compile", MODEL, "-o", tmp_path / "model.qnn", "--dump-ir", folder)
    (tmp_path / "file").write_text("")
    assert "--dump-ir" in fails("compile", MODEL, "-o", tmp_path / "model.qnn", "--dump-ir", tmp_path / "file")

"""Signed `.qnn` files: whoever has the public key loads what its owner signed, whole as it was, and nothing else."""

from __future__ import annotations

import builtins
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import qnn_ext
from qnn_ext import ArtifactError
from qnn_ext.cli.commands import cli
from qnn_ext.files.container import MANIFEST, SIGNATURE
from qnn_ext.files.signing import PASSPHRASE, private_key, public_key
from tests.qnn_files import description_of, members_of, rezip, write_members, zip_members

MODEL = Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite"


def private_pem(key, passphrase: str | None = None) -> bytes:
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def public_pem(key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


KEY, OTHER = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
PUBLIC = public_pem(KEY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two files of one model, signed.qnn and plain.qnn, and the keys private.pem and public.pem."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "private.pem").write_bytes(private_pem(KEY))
    (folder / "public.pem").write_bytes(PUBLIC)
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1)
    engine.save(folder / "signed.qnn", sign=folder / "private.pem")
    engine.save(folder / "plain.qnn")
    return folder


def test_loads_what_was_signed(folder):
    image = np.zeros((1, 8, 8, 1), np.int8)
    expected = qnn_ext.load(folder / "plain.qnn")(image)
    for key in (folder / "public.pem", str(folder / "public.pem"), PUBLIC, KEY.public_key()):
        np.testing.assert_array_equal(qnn_ext.load(folder / "signed.qnn", verify=key)(image), expected)
    np.testing.assert_array_equal(qnn_ext.load(folder / "signed.qnn")(image), expected)


def test_refuses_what_is_not_signed_or_by_others(folder):
    with pytest.raises(ArtifactError, match=r"plain\.qnn: it is not signed, but a signature is required"):
        qnn_ext.load(folder / "plain.qnn", verify=PUBLIC)
    with pytest.raises(ArtifactError, match=r"signed\.qnn: not signed with this key"):
        qnn_ext.load(folder / "signed.qnn", verify=OTHER.public_key())


@pytest.mark.parametrize("signature", [b"", bytes(64), b"x" * 63, b"x" * 100])
def test_refuses_other_signatures(folder, tmp_path, signature):
    rezip(folder / "signed.qnn", tmp_path / "m.qnn", {SIGNATURE: signature})
    with pytest.raises(ArtifactError, match="not signed with this key"):
        qnn_ext.load(tmp_path / "m.qnn", verify=PUBLIC)


def test_refuses_what_was_altered_since(folder, tmp_path):
    """Every member counts, also those that nothing would read: with checksums put right, and without."""
    path, signed = tmp_path / "m.qnn", folder / "signed.qnn"
    for name, content in zip_members(signed).items():
        if name not in (MANIFEST, SIGNATURE):
            rezip(signed, path, {name: bytes([content[0] ^ 1]) + content[1:]})
            with pytest.raises(ArtifactError, match=f"checksum of {name}"):
                qnn_ext.load(path, verify=PUBLIC)
    description = {**description_of(signed), "source": "another"}
    write_members(path, {**members_of(signed), "qnn.json": json.dumps(description).encode()})
    rezip(path, path, {SIGNATURE: zip_members(signed)[SIGNATURE]})
    assert qnn_ext.load(path).source_name == "another"
    with pytest.raises(ArtifactError, match="not signed with this key, or altered after"):
        qnn_ext.load(path, verify=PUBLIC)


def test_members_of_other_targets_count_too(tmp_path):
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), ["native", "native"], num_threads=1)
    engine.save(tmp_path / "signed.qnn", sign=private_pem(KEY))
    library = zip_members(tmp_path / "signed.qnn")["model1.so.xz"]
    rezip(tmp_path / "signed.qnn", tmp_path / "m.qnn", {"model1.so.xz": bytes(len(library))})
    qnn_ext.load(tmp_path / "m.qnn")
    with pytest.raises(ArtifactError, match=r"checksum of model1\.so"):
        qnn_ext.load(tmp_path / "m.qnn", verify=PUBLIC)


# ---- keys --------------------------------------------------------------------------------------------------------


def test_keys_that_are_none(tmp_path):
    elliptic = ec.generate_private_key(ec.SECP256R1())
    for read, content, message in (
        (private_key, PUBLIC, "does not hold a private key in PEM form, but a public one"),
        (public_key, private_pem(KEY), "does not hold a public key in PEM form, but a private one; openssl pkey"),
        (private_key, b"secret", "does not hold a private key in PEM form"),
        (public_key, b"", "does not hold a public key in PEM form"),
        (private_key, private_pem(elliptic), "is not an Ed25519 key: make one with openssl genpkey"),
        (public_key, public_pem(elliptic), "is not an Ed25519 key"),
    ):
        (tmp_path / "key.pem").write_bytes(content)
        with pytest.raises(ArtifactError, match=rf"key\.pem {message}"):
            read(tmp_path / "key.pem")
    for path in (tmp_path / "missing.pem", tmp_path, "nul\0"):
        with pytest.raises(ArtifactError, match=r"no such file|not a regular file|cannot be read"):
            private_key(path)
    with pytest.raises(
        ArtifactError, match="a key must be the path of a PEM file, its bytes or an Ed25519 key, found int"
    ):
        public_key(3)


def test_passphrases(monkeypatch):
    pem = private_pem(KEY, "open sesame")
    monkeypatch.delenv(PASSPHRASE, raising=False)
    with pytest.raises(
        ArtifactError, match=f"is encrypted: set the environment variable {PASSPHRASE} to its passphrase"
    ):
        private_key(pem)
    assert private_key(pem, lambda: "open sesame").public_key() == KEY.public_key()
    monkeypatch.setenv(PASSPHRASE, "open sesame")
    assert private_key(pem).public_key() == KEY.public_key()
    assert private_key(private_pem(KEY)).public_key() == KEY.public_key()  # which needs none
    for wrong in ("open", ""):
        monkeypatch.setenv(PASSPHRASE, wrong)
        with pytest.raises(ArtifactError, match="or the passphrase is wrong"):
            private_key(pem)


def test_without_the_package(folder, monkeypatch):
    real = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ArtifactError, match=r"need the package cryptography: pip install 'qnn-ext\[sign\]'"):
        qnn_ext.load(folder / "signed.qnn", verify=PUBLIC)
    qnn_ext.load(folder / "signed.qnn")


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_openssl_makes_keys_and_checks_signatures(folder, tmp_path):
    """As documented: openssl makes the keys and verifies the signatures, which sign the manifest as it is stored."""

    def openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=tmp_path)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "private.pem")
    openssl("pkey", "-in", "private.pem", "-pubout", "-out", "public.pem")
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1)
    engine.save(tmp_path / "m.qnn", sign=tmp_path / "private.pem")
    qnn_ext.load(tmp_path / "m.qnn", verify=tmp_path / "public.pem")
    for name in (MANIFEST, SIGNATURE):
        (tmp_path / name).write_bytes(zip_members(tmp_path / "m.qnn")[name])
    check = ["pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin", "-in", MANIFEST, "-sigfile", SIGNATURE]
    openssl(*check)
    (tmp_path / MANIFEST).write_bytes(b"{}")
    with pytest.raises(subprocess.CalledProcessError):
        openssl(*check)


# ---- the command line --------------------------------------------------------------------------------------------


def invoke(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    error = "" if done.exception is None or isinstance(done.exception, SystemExit) else str(done.exception)
    return done.exit_code, done.output + error


def test_commands(folder, tmp_path):
    signed = tmp_path / "m.qnn"
    code, text = invoke("compile", MODEL, "-o", signed, "--threads", 1, "--sign", folder / "private.pem")
    assert code == 0, text
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8, 1), np.int8))
    for command in (["inspect"], ["run", "--input", tmp_path / "x.npy"], ["bench", "--repeat", 1, "--number", 1]):
        code, text = invoke(*command, signed, "--verify", folder / "public.pem")
        assert code == 0, text
        code, text = invoke(*command, folder / "plain.qnn", "--verify", folder / "public.pem")
        assert code == 1 and "not signed" in text
        code, text = invoke(*command, MODEL, "--verify", folder / "public.pem")
        assert code == 1 and "is not a compiled .qnn file, and only those are signed" in text


def test_inspect_tells_of_signatures(folder):
    for name, options, message, fields in (
        ("plain.qnn", [], "signature: none", (False, False)),
        ("signed.qnn", [], "signature: present, not checked", (True, False)),
        ("signed.qnn", ["--verify", folder / "public.pem"], "signature: valid for the given key", (True, True)),
    ):
        assert message in invoke("inspect", folder / name, *options)[1]
        data = json.loads(invoke("inspect", folder / name, "--json", *options)[1])
        assert (data["signed"], data["verified"]) == fields


def test_a_bad_key_is_reported_before_anything_is_compiled(folder, tmp_path, monkeypatch):
    (tmp_path / "locked.pem").write_bytes(private_pem(KEY, "open sesame"))
    monkeypatch.delenv(PASSPHRASE, raising=False)
    for key, message in ((folder / "public.pem", "not hold a private key"), (tmp_path / "locked.pem", PASSPHRASE)):
        code, text = invoke("compile", tmp_path / "missing.tflite", "--sign", key)
        assert code == 1 and "no such file" in text
        monkeypatch.setattr("qnn_ext.cli.compile.import_model", None)  # not called
        code, text = invoke("compile", MODEL, "-o", tmp_path / "m.qnn", "--sign", key)
        assert code == 1 and message in text
    assert not (tmp_path / "m.qnn").exists()

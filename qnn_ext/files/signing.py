"""Signatures of `.qnn` files: Ed25519 by the package `cryptography`, imported only to make or check one.

Keys are PEM files, as `openssl genpkey -algorithm ed25519` writes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArtifactError
from .reading import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PrivateKey: TypeAlias = "str | os.PathLike | bytes | Ed25519PrivateKey"
PublicKey: TypeAlias = "str | os.PathLike | bytes | Ed25519PublicKey"
"""The path of a PEM file, its content as bytes, or a key object of `cryptography`."""

PASSPHRASE = "QNN_EXT_SIGN_PASSPHRASE"
"""The environment variable with the passphrase of an encrypted private key."""


def private_key(key: PrivateKey, ask: Callable[[], str] | None = None) -> Ed25519PrivateKey:
    """The private key to sign with.

    ask: returns the passphrase of an encrypted key if the environment variable QNN_EXT_SIGN_PASSPHRASE is not set

    Raises ArtifactError for a file that cannot be read, a key of another kind, a passphrase that is missing or wrong.
    """
    ed25519, serialization = _cryptography()
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    name, content = _pem(key)
    passphrase = os.environ.get(PASSPHRASE)
    if passphrase is None and b"ENCRYPTED" in content and ask is not None:
        passphrase = ask()
    if passphrase is None and b"ENCRYPTED" in content:
        raise ArtifactError(f"{name} is encrypted: set the environment variable {PASSPHRASE} to its passphrase")
    try:
        secret = passphrase.encode() if passphrase is not None and b"ENCRYPTED" in content else None
        found = serialization.load_pem_private_key(content, secret)
    except Exception as error:  # the library's types for what is no key differ from version to version
        hint = "or the passphrase is wrong" if b"ENCRYPTED" in content else _hint(content, "PUBLIC", "private")
        raise ArtifactError(f"{name} does not hold a private key in PEM form{_joined(hint)} ({error})") from None
    return _of_kind(found, ed25519.Ed25519PrivateKey, name)


def public_key(key: PublicKey) -> Ed25519PublicKey:
    """The public key to verify with. Raises ArtifactError for a file that cannot be read or a key of another kind."""
    ed25519, serialization = _cryptography()
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    name, content = _pem(key)
    try:
        found = serialization.load_pem_public_key(content)
    except Exception as error:  # the library's types for what is no key differ from version to version
        hint = _hint(content, "PRIVATE", "public")
        raise ArtifactError(f"{name} does not hold a public key in PEM form{_joined(hint)} ({error})") from None
    return _of_kind(found, ed25519.Ed25519PublicKey, name)


def signer(key: PrivateKey) -> Callable[[bytes], bytes]:
    """A function that signs bytes with a private key."""
    return private_key(key).sign


def verifier(key: PublicKey) -> Callable[[bytes, bytes], None]:
    """A function that raises ArtifactError unless its second argument is this key's signature of the first."""
    public = public_key(key)
    from cryptography.exceptions import InvalidSignature

    def verify(content: bytes, signature: bytes) -> None:
        try:
            public.verify(signature, content)
        except InvalidSignature:
            raise ArtifactError("not signed with this key, or altered after it was signed: do not load it") from None

    return verify


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ArtifactError("signatures need the package cryptography: pip install 'qnn-ext[sign]'") from None
    return ed25519, serialization


def _pem(key: Any) -> tuple[str, bytes]:
    """A key's name for messages, and its PEM form."""
    if isinstance(key, bytes):
        return "the key", key
    if not isinstance(key, (str, os.PathLike)):
        raise ArtifactError(
            f"a key must be the path of a PEM file, its bytes or an Ed25519 key, found {type(key).__name__}"
        )
    return os.fspath(key), read_bytes(key, ArtifactError)


def _hint(content: bytes, found: str, wanted: str) -> str:
    if b"BEGIN" not in content or found.encode() not in content:
        return ""
    make = "; openssl pkey -in KEY -pubout derives the public one from it" if wanted == "public" else ""
    return f"but a {found.lower()} one{make}"


def _joined(hint: str) -> str:
    return f", {hint}" if hint else ""


def _of_kind(key: Any, kind: type, name: str) -> Any:
    if not isinstance(key, kind):
        raise ArtifactError(f"{name} is not an Ed25519 key: make one with openssl genpkey -algorithm ed25519 -out KEY")
    return key

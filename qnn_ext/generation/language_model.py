"""A language model run by the token, or several tokens at once, over a cache that its engines keep as states."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, QnnError
from ..module import State, TensorSpec
from ..running.engine import Engine


@dataclass(frozen=True)
class Ports:
    """Where an engine takes tokens and positions and returns logits.

    tokens:    index of the input, and how many tokens a call takes
    positions: index of the input with the place of each token, or of the first one; None if the model counts itself
    mask:      index of an input that is 1 for each position so far and 0 for those that are not filled yet
    logits:    index of the output, whose last axis is the vocabulary
    """

    tokens: int
    count: int
    positions: int | None
    mask: int | None
    logits: int

    @classmethod
    def of(cls, engine: Engine) -> Ports:
        """The ports of an engine, by names and dtypes. Raises QnnError if they cannot be told apart."""
        found: dict[str, int] = {}
        for index, spec in enumerate(engine.inputs):
            role = _role(spec, len(engine.inputs))
            if role is None or role in found:
                raise _unknown(engine, f"it is not clear what the input {spec} is for")
            found[role] = index
        if "tokens" not in found:
            raise _unknown(engine, "none of its inputs has a name with 'token' or 'input_ids'")
        tokens = engine.inputs[found["tokens"]]
        count = max(tokens.shape, default=1)
        if int(np.prod(tokens.shape)) != count:
            raise _unknown(engine, f"its input {tokens} takes several texts at once; export it for one")
        floats = [index for index, spec in enumerate(engine.outputs) if spec.dtype.startswith("float") and spec.shape]
        named = [index for index in floats if "logits" in engine.outputs[index].name.lower()] or floats
        if not named:
            raise _unknown(engine, "it has no output of floats")
        positions = found.get("positions")
        if positions is not None and int(np.prod(engine.inputs[positions].shape)) not in (1, count):
            raise _unknown(engine, f"its input {engine.inputs[positions]} should hold one position, or {count}")
        return cls(found["tokens"], count, positions, found.get("mask"), named[0])


def _role(spec: TensorSpec, count: int) -> str | None:
    name = spec.name.lower()
    if "mask" in name:
        return "mask"
    if not spec.dtype.startswith(("int", "uint")):
        return None
    if "pos" in name:
        return "positions"
    return "tokens" if count == 1 or "token" in name or "ids" in name else None


def _unknown(engine: Engine, reason: str) -> QnnError:
    shown = ", ".join(map(str, engine.inputs))
    return QnnError(
        f"{engine.source_name}: no language model that can be run token by token: {reason}. Its inputs are {shown}. "
        "It must take tokens, may take positions (a name with 'pos') and a mask (a name with 'mask'), must return "
        "logits, and keep its cache in states"
    )


def check_model(model: Any) -> None:
    """Raises InputError for what does not return logits for tokens as a LanguageModel does, an Engine among them."""
    if not all(callable(getattr(model, name, None)) for name in ("logits", "reset")):
        raise InputError(f"a LanguageModel is needed, found {type(model).__name__}: use LanguageModel(engine)")


def whole_tokens(tokens: Any) -> list[int]:
    """Tokens as whole numbers. Raises InputError for anything else."""
    try:
        return [operator.index(token) for token in tokens]
    except TypeError:
        found = type(tokens).__name__ if not isinstance(tokens, Sequence) else repr(tokens)
        raise InputError(
            f"tokens must be whole numbers in a list, found {found[:80]}: a tokenizer makes them of text"
        ) from None


class LanguageModel:
    """One or more engines of a language model, over one cache.

    Engines may take different numbers of tokens in a call: the one with most takes the beginning of a prompt, the one
    with fewest the tokens that are generated. Engines that were built together (`Engine.others`) have one cache; from
    one file to another it moves when they take turns.

    engines: one or several, each with those beside it

    position: how many tokens the cache holds
    vocabulary: how many tokens there are

    Raises InputError for what is no engine, QnnError if an engine is no language model, or does not have the same
    states as the others.
    """

    def __init__(self, engines: Engine | Sequence[Engine]) -> None:
        given = [one for engine in _engines_of(engines) for one in (engine, *engine.others)]
        self._engines = sorted(((Ports.of(engine), engine) for engine in given), key=lambda pair: pair[0].count)
        first = given[0]
        for other in given[1:]:
            if _shapes(other.states) != _shapes(first.states):
                raise QnnError(
                    f"{other.source_name} and {first.source_name} keep different states: {_shapes(other.states)} and "
                    f"{_shapes(first.states)}"
                )
        self._current = first
        self.position = 0

    @property
    def engines(self) -> list[Engine]:
        """The engines, those that take fewer tokens first."""
        return [engine for _, engine in self._engines]

    @property
    def vocabulary(self) -> int:
        ports, engine = self._engines[0]
        return int(engine.outputs[ports.logits].shape[-1])

    def reset(self) -> None:
        """Start a new text."""
        self._current.reset_state()
        self.position = 0

    def state(self) -> tuple[int, list[np.ndarray]]:
        """A copy of all that the model keeps: to go on from here again with `restore`."""
        return self.position, self._current.state_values()

    def restore(self, state: tuple[int, list[np.ndarray]]) -> None:
        """Go on from what `state` returned. Raises InputError for anything else, QnnError for another model's."""
        try:
            place, values = state
            position = operator.index(place)
        except (TypeError, ValueError):
            raise InputError(f"a state is what `state()` returned, found {type(state).__name__}") from None
        self._current.set_states(values)
        self.position = position

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits (vocabulary,) after these tokens, which come behind those that the cache holds already.

        Raises InputError for a token beyond the vocabulary or a position beyond the cache, and for no tokens.
        """
        tokens = whole_tokens(tokens)
        if not tokens:
            raise InputError("there are no tokens to continue: give at least one")
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise InputError(f"token {token} is beyond the vocabulary of {self.vocabulary} tokens")
        done = 0
        while done < len(tokens):
            ports, engine = self._engine_for(len(tokens) - done)
            taken = min(ports.count, len(tokens) - done)
            logits = self._run(ports, engine, tokens[done : done + taken])
            done += taken
        return logits

    def _engine_for(self, left: int) -> tuple[Ports, Engine]:
        """The engine for the next of so many tokens: the largest that is filled, or else the smallest that takes all
        of them, if it can take fewer."""
        filled = [pair for pair in self._engines if pair[0].count <= left]
        padded = [pair for pair in self._engines if pair[0].count > left and _pads(*pair)]
        if padded and (not filled or 2 * filled[-1][0].count <= left):
            return padded[0]
        if not filled:
            raise QnnError(
                f"the model takes {self._engines[0][0].count} tokens at once, and there are only {left}: it needs an "
                "engine for one token, or an input with a position for each token"
            )
        return filled[-1]

    def _run(self, ports: Ports, engine: Engine, tokens: Sequence[int]) -> np.ndarray:
        if not engine.shares_states_with(self._current):
            engine.set_states(self._current.state_values())
        self._current = engine
        # Fewer tokens than the engine takes: the first is repeated, at the same position, where it computes the same
        spare = ports.count - len(tokens)
        steps = np.r_[np.zeros(spare, np.int64), np.arange(len(tokens))]
        values = [np.empty(0)] * len(engine.inputs)

        def give(index: int, array: np.ndarray) -> None:
            spec = engine.inputs[index]
            values[index] = np.ascontiguousarray(array.reshape(spec.shape), spec.dtype)

        give(ports.tokens, np.asarray(tokens)[steps])
        if ports.positions is not None:
            places = self.position + steps
            one = int(np.prod(engine.inputs[ports.positions].shape)) == 1
            give(ports.positions, places[:1] if one else places)
        if ports.mask is not None:
            length = int(np.prod(engine.inputs[ports.mask].shape))
            if self.position + len(tokens) > length:
                raise InputError(
                    f"tokens at positions {self.position} … {self.position + len(tokens) - 1} cannot be computed: the "
                    f"model's mask, and so its cache, has room for {length}"
                )
            give(ports.mask, np.arange(length) < self.position + len(tokens))
        try:
            outputs = engine(*values)
        except InputError as error:
            last = self.position + len(tokens) - 1
            raise InputError(f"tokens at positions {self.position} … {last} cannot be computed: {error}") from error
        self.position += len(tokens)
        result = outputs[ports.logits] if isinstance(outputs, list) else outputs
        return np.asarray(result.reshape(-1, result.shape[-1])[-1])


def _pads(ports: Ports, engine: Engine) -> bool:
    """Whether an engine can be given fewer tokens than it takes: each has its own position, and nothing counts them."""
    if ports.positions is None or ports.mask is not None:
        return False
    return int(np.prod(engine.inputs[ports.positions].shape)) == ports.count


def _engines_of(engines: Any) -> Sequence[Engine]:
    found = [engines] if isinstance(engines, Engine) else engines
    if not isinstance(found, Sequence) or not found or not all(isinstance(engine, Engine) for engine in found):
        raise InputError(
            f"a language model is made of an Engine, or several in a list, found {engines!r:.80}: `qnn_ext.build` "
            "and `qnn_ext.load` return them"
        )
    return found


def _shapes(states: Sequence[State]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(state.initial.dtype), state.initial.shape) for state in states]

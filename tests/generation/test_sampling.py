"""The choice of the next token: greedy, and the distributions that temperature, top_k and top_p leave."""

import numpy as np
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.generation import Sampling

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def test_greedy_takes_the_first_of_equals():
    assert Sampling().chooser().choose(np.float32([1, 3, 2, 3])) == 1


@pytest.mark.parametrize(
    "options, tokens, probabilities",
    [
        ({}, [1, 3, 4, 0, 2], [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, [1, 3, 4, 0, 2], np.square([0.4, 0.3, 0.15, 0.1, 0.05]) / 0.285),
        ({"top_k": 2}, [1, 3], [4 / 7, 3 / 7]),
        ({"top_p": 0.6}, [1, 3], [4 / 7, 3 / 7]),
        ({"top_p": 0.75}, [1, 3, 4], [8 / 17, 6 / 17, 3 / 17]),
        ({"top_p": 1e-9}, [1], [1.0]),
        ({"top_k": 3, "top_p": 0.5}, [1, 3], [4 / 7, 3 / 7]),
        ({"top_k": 99}, [1, 3, 4, 0, 2], [0.4, 0.3, 0.15, 0.1, 0.05]),
    ],
)
def test_candidates(options, tokens, probabilities):
    found, weights = Sampling(**{"temperature": 1.0, **options}).chooser().candidates(LOGITS)
    assert found.tolist() == tokens
    np.testing.assert_allclose(weights, probabilities, rtol=1e-6)


def test_draws_follow_the_seed_and_the_probabilities():
    def draws(seed):
        chooser = Sampling(temperature=1.0, seed=seed).chooser()
        return [chooser.choose(LOGITS) for _ in range(4000)]

    assert draws(1) == draws(1) != draws(2)
    np.testing.assert_allclose(np.bincount(draws(1), minlength=5) / 4000, np.exp(LOGITS), atol=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": np.nan},
        {"temperature": np.inf},
        {"temperature": "0.5"},
        {"temperature": None},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_k": True},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_p": np.nan},
        {"top_p": [0.5]},
        {"seed": -1},
        {"seed": "a"},
        {"seed": 1.0},
    ],
    ids=str,
)
def test_values_out_of_range(options):
    with pytest.raises(QnnError, match=f"{next(iter(options))} must be"):
        Sampling(**options)


def test_not_a_number():
    with pytest.raises(QnnError, match="logits contain NaN"):
        Sampling().chooser().choose(np.float32([1, np.nan]))


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1.0, 1e300])
def test_extreme_logits_and_temperatures(temperature):
    """∞ takes all there is, −∞ nothing unless all are; however low the temperature, the likeliest token remains."""
    chooser = Sampling(temperature=temperature).chooser()
    for logits, expected in (
        ([0, np.inf, 1, np.inf], [0, 0.5, 0, 0.5]),
        ([-np.inf] * 4, [0.25] * 4),
        ([3e38, -3e38, -np.inf, 3e38], [0.5, 0, 0, 0.5]),
    ):
        tokens, probabilities = chooser.candidates(np.float32(logits))
        if temperature < 1e300 or np.isinf(logits).sum() != 1:
            np.testing.assert_array_equal(probabilities, np.array(expected)[tokens])
        assert probabilities.sum() == pytest.approx(1) and chooser.choose(np.float32(logits)) in tokens

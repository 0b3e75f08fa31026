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


@pytest.mark.parametrize("options", [{"temperature": -1}, {"temperature": np.nan}, {"top_k": -1}, {"top_p": 0}])
def test_values_out_of_range(options):
    with pytest.raises(QnnError, match=f"{next(iter(options))} must be"):
        Sampling(**options)


def test_not_a_number():
    with pytest.raises(QnnError, match="logits contain NaN"):
        Sampling().chooser().choose(np.float32([1, np.nan]))

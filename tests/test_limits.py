"""The limits of imports and builds: what they are, how they are given, what an error says."""

import subprocess
import sys

import click
import pytest

import qnn_ext
from qnn_ext import LimitError, Limits, ModelFormatError, QnnError, limits
from qnn_ext.cli.formats import parse_limits


def test_importing_limits_imports_no_compiler():
    code = "import sys, qnn_ext; qnn_ext.Limits(unrolled=4096); assert not {'tvm', 'torch', 'onnx'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("values", [{"unrolled": 0}, {"seconds": -1.0}, {"memory": 1.5}, {"folded": True}])
def test_a_limit_is_a_positive_number(values):
    with pytest.raises(QnnError, match=f"limit {next(iter(values))}.* positive number"):
        Limits(**values)


def test_more_elements_than_can_be_indexed():
    with pytest.raises(QnnError, match="limit elements: can be at most 2,147,483,647"):
        Limits(elements=2**31)
    with pytest.raises(LimitError, match="the file is damaged"):
        limits.check_elements((2**16, 2**16))


def test_limits_of_another_type():
    with pytest.raises(QnnError, match=r"must be a qnn_ext\.Limits, found dict"):
        qnn_ext.from_onnx(b"", limits={"unrolled": 3})


def test_limits_hold_within_an_import_only():
    with limits.limited(Limits(unrolled=3)):
        assert limits.current().unrolled == 3
        limits.check("unrolled", 3)
        with pytest.raises(LimitError, match=r"4 steps, and the limit is 3 in one unrolled loop; .*--limit unrolled=4"):
            limits.check("unrolled", 4)
    assert limits.current() == Limits()


def test_what_is_counted():
    with limits.limited(Limits(constants=100, expressions=2)):
        limits.charge((10, 10))
        with pytest.raises(LimitError, match=r"Limits\(constants=101\)"):
            limits.charge((1,))
        limits.count_expression()
        limits.count_expression()
        with pytest.raises(LimitError, match="expressions"):
            limits.count_expression()


def test_the_clock():
    with limits.limited(Limits(seconds=1e-9)), pytest.raises(LimitError, match="--limit seconds="):
        limits.checkpoint()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory():
    with limits.limited(Limits(memory=2**24)):
        limits.checkpoint()
        kept = b"x" * 2**26
        with pytest.raises(LimitError, match="--limit memory="):
            limits.checkpoint()
        assert len(kept) == 2**26


def test_a_negative_dimension_is_no_matter_of_limits():
    with pytest.raises(ModelFormatError, match="damaged") as caught:
        limits.check_elements((2, -1))
    assert not isinstance(caught.value, LimitError)


def test_options_of_the_command_line():
    assert parse_limits([]) is None
    assert parse_limits(["unrolled=4096", "seconds=1.5"]) == Limits(unrolled=4096, seconds=1.5)
    for text in ("steps=3", "unrolled", "unrolled=many"):
        with pytest.raises(click.BadParameter, match=r"steps|unrolled"):
            parse_limits([text])

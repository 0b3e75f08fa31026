"""AudioSpectrogram and Mfcc: against LiteRT."""

import numpy as np
import pytest
from flatbuffers import flexbuffers

import qnn_ext
from qnn_ext.errors import ModelFormatError, QnnError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

MFCC = {
    "upper_frequency_limit": 4000,
    "lower_frequency_limit": 20,
    "filterbank_channel_count": 40,
    "dct_coefficient_count": 13,
}


def packed(options):
    """Options of a custom operator."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            (builder.Bool if isinstance(value, bool) else builder.Int)(key, value)
    return bytes(builder.Finish())


def bins_of(window):
    return (1 << (window - 1).bit_length()) // 2 + 1


def spectrogram(graph, samples, channels, window, stride, squared):
    """The input and the operator's result, of the shape beside it."""
    shape = (channels, 1 + (samples - window) // stride, bins_of(window))
    sound, result = graph.input((samples, channels), "float32"), graph.tensor(shape, "float32")
    options = {"window_size": window, "stride": stride, "magnitude_squared": squared}
    graph.op("AudioSpectrogram", [sound], [result], custom=packed(options))
    return result, shape


def mfcc(samples, window, rate, **options):
    """Coefficients of sound."""
    graph = Graph()
    power, (*frames, _) = spectrogram(graph, samples, 1, window, window // 2, True)
    options = {**MFCC, **options}
    result = graph.output((*frames, options["dct_coefficient_count"]), "float32")
    graph.op("Mfcc", [power, graph.const(rate, "int32")], [result], custom=packed(options))
    return graph.build()


def check(model, sound, compiled=False):
    ((expected,),) = invoke(model, [[sound]], "builtin", stateful=False)
    module = from_tflite(model)
    (found,) = Interpreter(module).run([sound]).values()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert found.shape == expected.shape and (found == expected).mean() > 0.99
    if compiled:
        np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(sound), found)


def sound_of(rng, *shape):
    return rng.normal(0, 0.3, shape).astype(np.float32)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(
    ("samples", "channels", "window", "stride"),
    [(2000, 1, 256, 128), (1500, 2, 480, 160), (700, 1, 30, 50), (9, 3, 2, 1), (64, 1, 64, 7)],
)
def test_spectrogram(rng, samples, channels, window, stride, squared):
    graph = Graph()
    power, shape = spectrogram(graph, samples, channels, window, stride, squared)
    graph.op("EXPAND_DIMS", [power, graph.const(0, "int32")], [graph.output((1, *shape), "float32")])
    check(graph.build(), sound_of(rng, samples, channels), compiled=samples < 1000)


@pytest.mark.parametrize(
    ("window", "rate", "options"),
    [
        (480, 16000, {}),
        (640, 8000, {"upper_frequency_limit": 3900, "lower_frequency_limit": 100, "filterbank_channel_count": 20}),
        (512, 44100, {"lower_frequency_limit": 0, "filterbank_channel_count": 64, "dct_coefficient_count": 10}),
        (64, 16000, {"dct_coefficient_count": 40}),  # bands without bins
        (256, 8000, {"upper_frequency_limit": 4000}),  # up to the last bin
    ],
)
def test_mfcc(rng, window, rate, options):
    check(mfcc(1600, window, rate, **options), sound_of(rng, 1600, 1), compiled=True)


def test_silence():
    """Energies have a lower bound, of which the logarithm is taken."""
    check(mfcc(1600, 480, 16000), np.zeros((1600, 1), np.float32))


@pytest.mark.parametrize(
    ("rate", "options"),
    [
        (0, {}),
        (16000, {"dct_coefficient_count": 41}),
        (16000, {"dct_coefficient_count": 0}),
        (16000, {"upper_frequency_limit": 20}),
        (16000, {"lower_frequency_limit": -1}),
        (16000, {"upper_frequency_limit": 9000}),
    ],
)
def test_damaged_options(rate, options):
    with pytest.raises(ModelFormatError, match="Mfcc"):
        from_tflite(mfcc(1600, 480, rate, **options))


@pytest.mark.parametrize("options", [{"stride": 0}, {"window_size": 1}, {"window_size": 1 << 40}, {}])
def test_damaged_windows(options):
    graph = Graph()
    given = {"window_size": 16, "stride": 8, **options} if options else {}
    operands = [graph.input((64, 1), "float32")], [graph.output((1, 7, 9), "float32")]
    graph.op("AudioSpectrogram", *operands, custom=packed({**given, "magnitude_squared": True}))
    with pytest.raises(QnnError, match="AudioSpectrogram"):
        from_tflite(graph.build())

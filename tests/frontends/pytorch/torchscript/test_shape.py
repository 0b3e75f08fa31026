"""Operators that move values, on quantized and float tensors; control flow and in-place operators around them."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qnn_ext
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch

from .oracle import Wrapped, check, quantized, run

MOVES = {
    "reshape": lambda x: x.reshape(2, -1),
    "view": lambda x: x.contiguous().view(4, 12, -1),
    "flatten": lambda x: torch.flatten(x, 1, 2),
    "permute": lambda x: x.permute(0, 2, -1, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "slice": lambda x: x[:, 1:7:2, :, -3:],
    "select": lambda x: x[:, 2],
    "select_last": lambda x: x.select(-1, -2),
    "chunk": lambda x: x.chunk(3, 1)[2],
    "split": lambda x: torch.cat([part for part in torch.split(x, [2, 6], 1)], 3 - 3 + 1),
    "unsqueeze": lambda x: x.unsqueeze(2).squeeze(2),
    "unbind": lambda x: x.unbind(1)[3],
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "narrow": lambda x: x.narrow(1, 2, 4),
    "flip": lambda x: x.flip(2),
    "topk": lambda x: x.topk(3, 1)[0],
    "topk_smallest": lambda x: x.topk(2, -1, largest=False)[0],
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_along": lambda x: x.max(1)[0],
    "min_along": lambda x: x.min(2)[0],
    "sort": lambda x: x.sort(1)[0],
    "sort_descending": lambda x: torch.sort(x, -1, descending=True)[0],
    "tile": lambda x: x.tile(2, 1),
    "unfold": lambda x: x.unfold(-2, 3, 2),
    "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "hstack": lambda x: torch.hstack([x, x.flip(1)]),
    "mT": lambda x: x.mT,
    "mT_of_squares": lambda x: x[:, :, :4].mT.contiguous(),
    "adjoint": lambda x: x[:, :, :4].adjoint(),
    "masked_fill": lambda x: x.masked_fill(x.dequantize() > 0, 0.31) if x.is_quantized else x.masked_fill(x > 0, 0.31),
}
FLOAT_ONLY = {
    "roll": lambda x: x.roll((-2, 9), (1, -1)),
    "roll_flattened": lambda x: x.roll(5),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(1, keepdim=True),
    "argmax_flattened": lambda x: x.argmax(),
    "rows_and_columns": lambda x: x[torch.tensor([1, 0, 1]), torch.tensor([-1, 3, 0])],
    "indices_that_broadcast": lambda x: x[torch.tensor([[1], [0]]), torch.tensor([-1, 3, 0])],
    "indices_inside": lambda x: x[:, torch.tensor([[1], [0]]), torch.tensor([-1, 3, 0])],
    "indices_apart": lambda x: x[torch.tensor([1, 0, 1]), :, torch.tensor([-1, 3, 0])],
    "indices_at_maxima": lambda x: x[:, x.argmax(1)[0], :, torch.tensor([3])],
    "glu": lambda x: F.glu(x, 1),
    "expand": lambda x: x[:, :1].expand(2, 8, 6, 4),
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad_reflect": lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (2, 1, 0, 1), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (2, 1, 1, 0), mode="circular"),
    "reflection_layer": torch.nn.ReflectionPad2d((1, 2, 0, 3)),
    "amax": lambda x: x.amax((1, -1)),
    "amin": lambda x: x.amin(2, keepdim=True),
    "max": lambda x: x.max() + x.min(),
    "max_along": lambda x: x.max(2)[0] + x.min(-2, keepdim=True)[0].squeeze(2),
    "max_position": lambda x: x.max(2)[1],
    "max_of_two": lambda x: torch.max(x, x.flip(1)),
    "topk": lambda x: x.topk(3, 1)[0],
    "topk_positions": lambda x: x.topk(2, -1, largest=False)[1],
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_of_flags": lambda x: (x > 0).cumsum(1),
    "div_floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "div_trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "floor_divide": lambda x: x // 0.25,
    "div_positions": lambda x: torch.div(x.argmax(-1), 3, rounding_mode="floor"),
    "meshgrid": lambda x: x + torch.meshgrid(torch.arange(6), torch.arange(4), indexing="ij")[0],
    "gather": lambda x: x.gather(2, torch.ones(2, 5, 3, 4).long()),
    "gather_at_maxima": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "movedim": lambda x: x.movedim(1, -1),
    "channel_shuffle": lambda x: torch.channel_shuffle(x, 2),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 1, 1])),
}


@pytest.mark.parametrize("name", MOVES)
def test_quantized(rng, name):
    check(MOVES[name], quantized(rng, (2, 8, 6, 4), 0.03, 77))


@pytest.mark.parametrize("name", [*MOVES, *FLOAT_ONLY])
def test_float(rng, name):
    check({**MOVES, **FLOAT_ONLY}[name], torch.from_numpy(rng.normal(0, 1, (2, 8, 6, 4)).astype(np.float32)))


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_constant_pad(rng, value):
    check(lambda x: F.pad(x, (1, 2, 0, 3), value=value), quantized(rng, (2, 3, 4, 5), 0.03, 77))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bilinear_corners"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_upsample(rng, engine, mode, channels_last):
    x = quantized(rng, (2, 16, 5, 7), 0.03, 77)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    options = {"mode": "nearest"} if mode == "nearest" else {"mode": "bilinear", "align_corners": "corners" in mode}
    check(lambda x: F.interpolate(x, scale_factor=2, **options), x, engine=engine, off_by_one=2)
    check(lambda x: F.interpolate(x, size=(8, 5), **options), x, engine=engine, off_by_one=4)


@pytest.mark.parametrize("channels", [3, 8, 12, 17, 32])
@pytest.mark.parametrize("size", [7, 9])
def test_channels_last_kernels_of_bilinear_resizing(rng, channels, size):
    """Exact at sizes whose weights are often close to ties."""
    x = quantized(rng, (4, channels, 8, 8), 0.037, 17).contiguous(memory_format=torch.channels_last)
    check(lambda x: F.interpolate(x, size=(size, size), mode="bilinear"), x)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_stack_of_quantized(rng, engine, shape):
    """In the QParams of the first."""
    tensors = [quantized(rng, shape, scale, zero) for scale, zero in ((0.05, 100), (0.031, 7), (0.05, 100))]
    for axis in (0, 1, -1):
        check(lambda *x, axis=axis: torch.stack(x, axis), *tensors, engine=engine)


# ---- programs ----------------------------------------------------------------------------------------------------


class Branches(torch.nn.Module):
    """Control flow over shapes and flags, which the example inputs decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces: list[torch.Tensor] = []
        for i in range(x.size(0)):
            if i % 2 == 0:
                pieces.append(x[i] * float(i + 1))
            else:
                pieces.append(torch.relu(x[i]))
        if x.dim() != 2:
            raise RuntimeError("two dimensions, please")
        return torch.stack(pieces, 0)


class Dimensions(torch.nn.Module):
    """Lists of dimensions: indexed, sliced, joined, repeated, counted."""

    def forward(self, x):
        sizes = {"rows": x.shape[0] * x.shape[1]}
        y = x.view(sizes["rows"] // len(x.shape), x.shape[2], -1)
        y = y.reshape(list(x.shape[:2]) + list(x.shape[2:]))
        return F.interpolate(y.repeat([1] * len(x.shape)), size=[x.shape[-2] * 2, x.shape[-1]])


class Containers(torch.nn.Module):
    """Lists and dictionaries of tensors that change, and a result that is there in training only."""

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        found: dict[str, torch.Tensor] = OrderedDict()
        found["a"] = x + 1.0
        found["b"] = y * 2.0
        items: list[torch.Tensor] = []
        items.extend([x, y])
        items.insert(1, found["a"])
        items.reverse()
        last = items.pop()
        items.pop(0)
        items[0] = last * 3.0
        for name, value in found.items():
            items.append(value if name == "a" else -value)
        for name in list(found.keys()):
            items.append(found[name])
        for value in found.values():
            items.append(value)
        missing = found.get("c")
        items.append(x if missing is None else missing)
        if "b" in found and "c" not in found:
            found.update({"d": found.pop("b")})
        del found["a"]
        extra: torch.Tensor | None = None
        return torch.cat(items), extra, found


def test_script_with_containers(rng):
    x, y = (torch.from_numpy(rng.normal(0, 1, (2, 3)).astype(np.float32)) for _ in range(2))
    scripted = torch.jit.script(Containers())
    joined, _, found = scripted(x, y)
    results = list(qnn_ext.Interpreter(from_pytorch(scripted, (x, y))).run([x.numpy(), y.numpy()]).values())
    for result, expected in zip(results, [joined, found["d"]], strict=True):
        np.testing.assert_array_equal(result, expected.numpy())


class Asking(torch.nn.Module):
    """What scripts of PyTorch's own modules ask about the process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled() or torch.is_grad_enabled():
            return x
        other: torch.Tensor | None = x * 2.0
        return torch.jit._unwrap_optional(other) if torch.jit.is_scripting() else x


def test_script_that_asks_about_the_process(rng):
    x = torch.from_numpy(rng.normal(0, 1, (2, 3)).astype(np.float32))
    module = from_pytorch(torch.jit.script(Asking()), (x,))
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x.numpy()), 2 * x.numpy())


class Around(torch.nn.Module):
    """A module as it is created, in training mode, around another."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_training_mode_matters_where_an_operator_has_one(rng):
    x = torch.from_numpy(rng.normal(0, 1, (2, 3, 4, 4)).astype(np.float32))
    inner = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Dropout(0.5)).eval()
    for graph in (torch.jit.script(Around(inner)), torch.jit.trace(Around(inner), x)):
        result = qnn_ext.Interpreter(from_pytorch(graph, (x,)))(x.numpy())
        np.testing.assert_allclose(result, inner(x).detach().numpy(), rtol=1e-6, atol=1e-6)
    for layer in inner:
        with pytest.raises(UnsupportedOperatorError, match=r"in training mode.*model\.eval\(\)"):
            from_pytorch(torch.jit.script(Around(layer.train())), (x,))
    from_pytorch(torch.jit.script(Around(torch.nn.Dropout(0.0))), (x,))


def test_script_with_lists_of_dimensions(rng):
    x = torch.from_numpy(rng.normal(0, 1, (2, 8, 6, 3)).astype(np.float32))
    module = from_pytorch(torch.jit.script(Dimensions().eval()), (x,))
    (found,) = qnn_ext.Interpreter(module).run([x.numpy()]).values()
    np.testing.assert_array_equal(found, Dimensions()(x).numpy())


def test_script_with_control_flow(rng):
    x = rng.normal(0, 1, (3, 4)).astype(np.float32)
    module = from_pytorch(torch.jit.script(Branches().eval()), (x,))
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x), Branches()(torch.from_numpy(x)).numpy())


def test_in_place(rng):
    """Later readers of the variable, and of other views of its memory, see the result."""

    def network(x):
        y = x * 2
        y.add_(1.0)
        torch.relu_(y)
        return y + x

    check(network, torch.from_numpy(rng.normal(0, 1, (3, 4)).astype(np.float32)))

    def through_a_view(x):
        y = x * 2
        part = y[0]
        torch.relu_(y)
        return part

    check(through_a_view, torch.from_numpy(rng.normal(0, 1, (3, 4)).astype(np.float32)))


def written(x, y, at=None):
    """y with a part, or all of it, replaced."""
    y[at] = x
    return y


WRITES = {
    "slice": lambda x: written(x[:, 2:5], x * 2, (slice(None), slice(3, 6))),
    "slice of zeros": lambda x: written(x, torch.zeros(4, 12, 6), (slice(None), slice(2, 10))),
    "first rows": lambda x: written(x[:2] + 1, x * 2, slice(0, 2)),
    "last rows": lambda x: written(x[:2] + 1, x * 2, slice(2, None)),
    "every second": lambda x: written(-x[..., :3], x * 2, (Ellipsis, slice(0, None, 2))),
    "block": lambda x: written(x[1:3, 2:4], x * 2, (slice(0, 2), slice(5, 7))),
    "all": lambda x: written(x + 1, x * 2, Ellipsis),
    "one row": lambda x: written(x[1], x * 2, 3),
    "one number": lambda x: written(0.5, x * 2, (slice(None), 1)),
    "of another dtype": lambda x: written(x[0], torch.zeros(4, 8, 6).double(), 1),
    "of integers": lambda x: written(x.argmax(1), torch.ones(4, 8, 6).long(), (slice(None), 2)),
    "transposed": lambda x: written(x[..., 0].t(), (x * 2).transpose(0, 1), (slice(None), slice(None), 1)),
    "twice": lambda x: written(x[0], written(x[:, :3], torch.zeros(4, 8, 6), (slice(None), slice(1, 4))), 0),
    "elements": lambda x: written(x[0, :3], x * 2, (torch.tensor([3, 0, -1]), torch.tensor([1, -2, 0]))),
    "elements of inner axes": lambda x: written(
        x[..., 0, 0, None], x * 2, (slice(None), *torch.tensor([[1, 2], [0, -1]]))
    ),
    "rows": lambda x: written(x[:2], x * 2, torch.tensor([3, 1])),
    "where positive": lambda x: written(torch.tensor(7.0), x * 2, x > 0),
    "rows by mask": lambda x: written(0.25, x * 2, x[:, 0, 0] > 0),
    "at maxima": lambda x: written(x[0, :, 0], x[0] * 2, (torch.arange(8), x[0].argmax(1))),
    "added": lambda x: x.index_put((torch.tensor([1, 1]), torch.tensor([0, 2])), x[0, :2], accumulate=True),
    "filled": lambda x: (x * 2)[1].fill_(3.0) + x,
    "zeroed": lambda x: (lambda y: (y[:, 1:3].zero_(), y)[1])(x * 2),
    "added to a view": lambda x: (lambda y: (y[1].add_(x[0]), y)[1])(x * 2),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", WRITES)
def test_writes(rng, name):
    x = torch.from_numpy(rng.normal(0, 1, (4, 8, 6)).astype(np.float32))
    check(
        WRITES[name], x, compiled=name in ("slice of zeros", "every second", "elements of inner axes", "rows by mask")
    )


WRITES_TO_QUANTIZED = {
    "copied": lambda y, x: y[:, 0].copy_(x[:, 1]),
    "broadcast": lambda y, x: y[:, 1:3].copy_(x[:, :1]),
    "floats": lambda y, x: y.copy_(x.dequantize() * 1.7),
    "at_a_mask": lambda y, x: y.__setitem__(x.dequantize() > 0, 0.31),
    "at_indices": lambda y, x: y.__setitem__((torch.tensor([0, 1]), torch.tensor([1, -1])), torch.tensor(0.31)),
    "filled": lambda y, x: y.fill_(0.31),
}


@pytest.mark.parametrize("name", WRITES_TO_QUANTIZED)
def test_writes_to_quantized_tensors(rng, name):
    """Floats are quantized as the tensor is."""

    def network(x):
        y = x.clone()
        WRITES_TO_QUANTIZED[name](y, x)
        return y

    check(network, quantized(rng, (2, 8, 6, 4), 0.03, 77), compiled=True)


def test_values_of_another_scale_are_refused(rng):
    inputs = quantized(rng, (2, 3), 0.03, 77), quantized(rng, (3,), 0.04, 77)

    def writes(x, y):
        x = x.clone()
        x[0].copy_(y)
        return x

    module = torch.jit.trace(Wrapped(writes), inputs)
    with pytest.raises(UnsupportedOperatorError, match=r"another scale|through a view"):
        from_pytorch(module, inputs)
    module = torch.jit.trace(Wrapped(lambda x, y: torch.hstack([x[0], y])), inputs)
    with pytest.raises(UnsupportedOperatorError, match="different scales"):
        from_pytorch(module, inputs)


def test_elements_by_mask_are_as_many_as_the_values(rng):
    """A mask that is known only at run time selects as many elements as there are values, which the engine checks."""

    def network(x):
        return written(x[:2, 0, 0], x * 2, x > 0.99)

    x = torch.zeros(4, 8, 6)
    x[0, 0, 0] = x[3, 2, 1] = 1
    x[1, 0, 0] = -3
    check(network, x, compiled=True)
    engine = qnn_ext.build(from_pytorch(torch.jit.trace(Wrapped(network).eval(), (x,)), (x,)), num_threads=1)
    x[2, 2, 2] = 1
    with pytest.raises(InputError, match="index_put"):
        engine(x.numpy())


WINDOWS = {
    "plain": ((2, 3), {}),
    "strides": ((3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "dilation": ((2, 2), {"dilation": (2, 3), "padding": 2}),
    "patches": ((3, 2), {"stride": (3, 2)}),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(rng, name):
    """Images taken apart, and put together again: what overlaps is added in PyTorch's order."""
    kernel, options = WINDOWS[name]
    x = torch.from_numpy(rng.normal(0, 1, (2, 3, 9, 8)).astype(np.float32))
    check(lambda x: F.unfold(x, kernel, **options), x)
    columns = torch.from_numpy(rng.normal(0, 1, F.unfold(x, kernel, **options).shape).astype(np.float32))
    check(lambda y: F.fold(y, (9, 8), kernel, **options), columns, compiled=name == "strides")
    check(lambda y: F.fold(y[0], (9, 8), kernel, **options), columns)


BICUBIC = {
    "twice": {"scale_factor": 2},
    "to a size": {"size": (5, 11)},
    "corners": {"size": (13, 3), "align_corners": True},
    "by a factor": {"scale_factor": (1.7, 0.6)},
    "by a factor that is kept": {"scale_factor": (1.7, 0.6), "recompute_scale_factor": False},
}


@pytest.mark.parametrize("name", BICUBIC)
def test_bicubic(rng, name):
    x = torch.from_numpy(rng.normal(0, 1, (2, 3, 9, 8)).astype(np.float32))
    result, expected = run(lambda x: F.interpolate(x, mode="bicubic", **BICUBIC[name]), x)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


def test_in_place_on_constants(rng):
    """A constant that an in-place operator changes is itself no constant any more, and stays as it is in the model."""
    base = torch.ones(2, 3)

    def network(x):
        y = torch.ones(2, 3) * 2
        y.add_(x)
        return y * x

    check(network, torch.from_numpy(rng.normal(0, 1, (2, 3)).astype(np.float32)))

    def through_a_view(x):
        y = torch.ones(2, 3)
        y[0].add_(x)
        return y * x

    check(through_a_view, torch.from_numpy(rng.normal(0, 1, 3).astype(np.float32)))

    class ThroughAList(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            y = torch.ones(2, 3)
            rows = [y[0], y[1]]
            y.add_(x)
            return rows[0]

    def changing_the_model(x):
        return base.mul_(x)

    with pytest.raises(UnsupportedOperatorError, match="in-place"):
        from_pytorch(torch.jit.script(ThroughAList().eval()), shapes=[(3,)])
    traced = torch.jit.trace(Wrapped(changing_the_model).eval(), (torch.ones(3),), check_trace=False)
    with pytest.raises(UnsupportedOperatorError, match="changes what the model keeps"):
        from_pytorch(traced, shapes=[(3,)])


def test_in_place_on_parts(rng):
    """Parts of a tensor that share its memory, but none of its elements."""

    def network(x):
        first, second = (x * 2).chunk(2, 1)
        first.sigmoid_()
        second.add_(1.0)
        return first * second

    check(network, torch.from_numpy(rng.normal(0, 1, (3, 4)).astype(np.float32)))


def test_outputs_and_inputs(rng):
    """Several outputs in a nested tuple, of which one is an input and one a constant."""

    class Several(torch.nn.Module):
        def forward(self, image: torch.Tensor, mask: torch.Tensor):
            return image + mask, (mask, torch.ones(2))

    one, two = (rng.normal(0, 1, (2, 3)).astype(np.float32) for _ in range(2))
    module = from_pytorch(torch.jit.trace(Several().eval(), (torch.from_numpy(one),) * 2, strict=False), (one, two))
    assert [spec.name for spec in module.inputs] == ["image", "mask"]
    assert [spec.name for spec in module.outputs] == ["output", "output_1", "output_2"]
    results = qnn_ext.Interpreter(module).run({"mask": two, "image": one})
    np.testing.assert_array_equal(results["output"], one + two)
    np.testing.assert_array_equal(results["output_1"], two)
    np.testing.assert_array_equal(results["output_2"], np.ones(2, np.float32))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_casts_round(rng, name):
    """Although nothing is stored between the two casts."""
    dtype = getattr(torch, name)
    x = torch.from_numpy((rng.standard_normal((3, 41)) * 7).astype(np.float32))
    network = Wrapped(lambda x: x.to(dtype).to(torch.float32) * 3).eval()
    module = from_pytorch(torch.jit.trace(network, (x,)), example_inputs=(x,))
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x.numpy()), network(x).numpy())


def test_float8_is_refused():
    network, x = Wrapped(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32)).eval(), torch.ones(3)
    with pytest.raises(UnsupportedOperatorError, match=r"aten::to.*float8_e4m3fn; export the model in float32"):
        from_pytorch(torch.jit.trace(network, (x,)), example_inputs=(x,))

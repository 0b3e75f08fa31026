"""Scripts that decide by values, and the containers and numbers that they take and return."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch

pytestmark = pytest.mark.filterwarnings("ignore")


class Returns(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return self.layer(x)
        return -x


class Combines(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, n = x, 2
        if (bool(x.mean() > 0) and not bool(x[0, 0] > 1)) or bool((x < -2).any()):
            y = (x * 3).relu_()
            y[0].add_(1.0)
            parts = [y, y + 1]
            parts.append(x)
            y = torch.stack(parts).sum(0)
        elif bool(x[1, 1] > 0):
            y = x.abs()
        return y * n


class Asserts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool((x < 100).all()), "too large"
        if bool((x > 100).any()):
            raise ValueError("too large")
        return x + 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Tuples(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        if bool(x.max() > 1):
            one, two = x, x * 2
        else:
            one, two = x + 1, torch.ones(2, 3)
        return Pair(one, two)


def drawn(rng):
    return [(rng.normal(shift, 1, (2, 3))).astype(np.float32) for shift in (0, 1, -1, 3, -3)]


@pytest.mark.parametrize("network", [Returns(), Combines(), Asserts(), Tuples()], ids=lambda one: type(one).__name__)
def test_decisions(rng, network):
    """Whichever branch the example takes."""
    script, cases = torch.jit.script(network.eval()), drawn(rng)
    for example in cases[:3]:
        module = from_pytorch(script, (torch.from_numpy(example),))
        for x in cases:
            expected = network(torch.from_numpy(x))
            expected = expected if isinstance(expected, tuple) else (expected,)
            found = qnn_ext.Interpreter(module).run([x]).values()
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_compiled(rng):
    cases = drawn(rng)
    module = from_pytorch(torch.jit.script(Combines().eval()), (torch.from_numpy(cases[0]),))
    engine = qnn_ext.build(module, num_threads=1)
    for x in cases:
        np.testing.assert_array_equal(engine(x), qnn_ext.Interpreter(module)(x))


class WritesOutside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if bool(x.sum() > 0):
            y[0].add_(1.0)
        return y


class AppendsOutside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        if bool(x.sum() > 0):
            parts.append(x)
        return torch.stack(parts)


@torch.jit.script
class Mean:
    """A class of the script."""

    def __init__(self, first: torch.Tensor) -> None:
        self.sum = first
        self.count = 1

    def add(self, value: torch.Tensor) -> None:
        self.sum = self.sum + value
        self.count += 1

    def value(self) -> torch.Tensor:
        return self.sum / self.count


class ChangesOutside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = Mean(x)
        if bool(x.sum() > 0):
            mean.add(x * 3)
        return mean.value()


class OtherShape(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[0] if bool(x.sum() > 0) else x


class OtherNumber(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 2
        if bool(x.sum() > 0):
            n = 3
        return x * n


class Number(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (float(x.mean()) + 1.0)


class Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 0
        while bool(x.abs().max() > 0.5):
            x, n = x * 0.5, n + 1
        return x * n


class ReadsCount(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < 3 and bool(x.abs().max() > 0.5):
            x, n = x * 0.5, n + 1
        return x * n


class Item(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 - x.max().item())


class Items(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest, first = x.max().item(), float(x[0, 0])
        y = torch.where(x >= largest, x + 1, x / largest)
        return y.sub(first, alpha=2).mul_(float(largest))


class ChangesAround(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        while bool(x.abs().max() > 0.5):
            y.add_(1.0)
            x = x * 0.5
        return y


class Rounds(torch.nn.Module):
    """Rounds until a condition holds, with a tensor that is no input, a truth and a number that stays."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count, small, factor = torch.zeros(1), False, 0.5
        while bool(x.abs().max() > 0.5):
            x = x * factor
            if bool(x.sum() > 1):
                x = torch.tanh(self.layer(x))
            count = count + 1
            small = bool(x.min() > -0.1)
        if small:
            x = -x
        return x, count


class Breaks(torch.nn.Module):
    """A range that a value may end before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x * 2
            if bool(x.sum() > 10):
                break
            x = x + 1
        return x


class Bounded(torch.nn.Module):
    """A count beside the condition, which a round reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < 4 and bool(x.abs().max() > 0.5):
            x = x * 0.5 + n
            n += 1
        return x


@pytest.mark.parametrize("network", [Rounds, Breaks, Bounded], ids=lambda one: one.__name__)
def test_rounds(rng, network):
    """As many as PyTorch computes, whatever the example; none for small values."""
    model = network().eval()
    module = from_pytorch(torch.jit.script(model), (torch.ones(2, 3),))
    interpreter, engine = qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)
    for scale in (0.01, 0.3, 3, 40):
        x = rng.normal(0, scale, (2, 3)).astype(np.float32)
        with torch.no_grad():
            expected = model(torch.from_numpy(x))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for results in (interpreter.run([x]).values(), engine.run([x]).values()):
            for found, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6, atol=1e-7)


REFUSED = {
    WritesOutside: r"aten::add_.*changes a tensor or list within a branch",
    AppendsOutside: r"aten::append.*changes a tensor or list within a branch",
    ChangesOutside: r"prim::SetAttr.*changes a tensor or list within a branch",
    OtherShape: "the branches of a condition computed at run time differ",
    OtherNumber: "return different numbers",
    Number: r"aten::Float.*makes a number of a tensor's values.*torch\.jit\.trace",
    Counts: r"prim::Loop.*counts them up to more than 256",
    ReadsCount: r"prim::Loop.*read after a loop",
    ChangesAround: r"aten::add_.*within such a loop",
    Item: r"aten::item.*compute with the tensor itself",
}


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        largest = x.float().max()
        return x * 0.1, x / 0.1, x * largest.item(), x / largest


def test_float16_is_multiplied_by_float32_numbers():
    """Rounding the number to float16 first would change a third of the products."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 40)).astype(np.float16))
    script = torch.jit.script(Halves().eval())
    found = qnn_ext.build(qnn_ext.from_pytorch(script, example_inputs=(x,)))(x.numpy())
    for ours, theirs in zip(found, script(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_numbers_computed_with_tensors():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))
    script = torch.jit.script(Items().eval())
    module = qnn_ext.from_pytorch(script, example_inputs=(x,))
    for data in (x, x * 3 - 1):
        np.testing.assert_array_equal(qnn_ext.Interpreter(module)(data.numpy()), script(data).numpy())
        np.testing.assert_array_equal(qnn_ext.build(module)(data.numpy()), script(data).numpy())


@pytest.mark.parametrize("network", REFUSED, ids=lambda one: one.__name__)
def test_refused(network):
    with pytest.raises(UnsupportedOperatorError, match=REFUSED[network]):
        from_pytorch(torch.jit.script(network().eval()), (torch.ones(2, 3),))


# ---- containers and numbers ----------------------------------------------------------------------------------------


class Containers(torch.nn.Module):
    def forward(self, xs: list[torch.Tensor], more: dict[str, torch.Tensor], pair: tuple[torch.Tensor, int]):
        parts = ([xs[1] - more["b"]] + xs)[::-1]
        return torch.cat(parts[:2] * 2), more["a"] * pair[1], pair[0].size(0), 0.5


def test_containers(rng, tmp_path):
    """Each tensor in a list, dictionary or tuple is an input; numbers are constant outputs."""
    one, two, three, four, five = (rng.normal(0, 1, (2, 3)).astype(np.float32) for _ in range(5))
    script = torch.jit.script(Containers().eval())
    script.save(tmp_path / "model.pt")
    examples = [one, two], {"a": three, "b": four}, (five, 3)
    for source in (script, tmp_path / "model.pt"):
        module = from_pytorch(source, examples)
        assert [spec.name for spec in module.inputs] == ["xs_0", "xs_1", "more_a", "more_b", "pair_0"]
        results = list(qnn_ext.Interpreter(module).run([one, two, three, four, five]).values())
        np.testing.assert_array_equal(results[0], np.concatenate([two, one] * 2))
        np.testing.assert_array_equal(results[1], three * 3)
        assert (results[2], results[3]) == (2, 0.5)


class Objects(torch.nn.Module):
    """Objects of its own class, PyTorch's context, ranges that go backwards, and lists that grow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = Mean(x)
        parts: list[torch.Tensor] = []
        with torch.no_grad():
            for i in range(x.size(0) - 1, -1, -1):
                parts += [x[i] * i]
                mean.add(x * i)
        return torch.cat([torch.stack(parts), mean.value()])


def test_objects(rng):
    x = torch.from_numpy(rng.normal(0, 1, (4, 3)).astype(np.float32))
    module = from_pytorch(torch.jit.script(Objects().eval()), (torch.zeros(4, 3),))
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x.numpy()), Objects()(x).numpy(), rtol=1e-6)


class Defaults(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, count: int = 2, scale: float = 0.5):
        if mask is not None:
            x = x * mask
        return x.topk(count, 1)[0] * scale


@pytest.mark.parametrize("given, options", [
    (lambda x, mask: (x,), {}),
    (lambda x, mask: {"x": x, "scale": 3.0}, {"scale": 3.0}),
    (lambda x, mask: (x, mask), {"mask": True}),
    (lambda x, mask: (x, mask, 1), {"mask": True, "count": 1}),
])  # fmt: skip
def test_parameters_without_examples_have_their_defaults(rng, given, options):
    x, mask = (torch.from_numpy(rng.normal(0, 1, (4, 3)).astype(np.float32)) for _ in range(2))
    network = torch.jit.script(Defaults().eval())
    module = from_pytorch(network, given(x, mask))
    expected = network(x, **{**options, **({"mask": mask} if "mask" in options else {})})
    inputs = [x.numpy(), mask.numpy()][: len(module.inputs)]
    assert len(inputs) == 1 + ("mask" in options)
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(*inputs), expected.numpy(), rtol=1e-6)


def test_shapes_of_inputs_without_defaults_suffice(rng):
    x = rng.normal(0, 1, (4, 3)).astype(np.float32)
    module = from_pytorch(torch.jit.script(Defaults().eval()), shapes={"x": (4, 3)})
    expected = Defaults()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x), expected, rtol=1e-6)


class Forks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        later = torch.jit.fork(self.layer, x)
        return x * 2 + torch.jit.wait(later)


def test_fork(rng):
    x = rng.normal(0, 1, (2, 3)).astype(np.float32)
    module = from_pytorch(torch.jit.script(Forks().eval()), (x,))
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x), x * 2 + np.maximum(x, 0))


def test_weights_in_bfloat16_are_refused():
    network, x = torch.nn.Linear(3, 2).bfloat16(), torch.ones(1, 3)

    class Casts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = network

        def forward(self, x):
            return self.layer(x.bfloat16()).float()

    with pytest.raises(UnsupportedOperatorError, match=r"bfloat16.*model\.float\(\).*torch\.export"):
        from_pytorch(torch.jit.trace(Casts().eval(), x), (x,))

"""Float operators of torch.export programs against PyTorch, undecomposed: each with the options that matter.

The quantized part is tested elsewhere; here every converter, ours or TVM's, has to compute what PyTorch computes."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qnn_ext import Interpreter, build
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch.exported import from_exported_program

from .networks import run_torch

pytestmark = pytest.mark.filterwarnings("ignore")


class Call(nn.Module):
    """A function of modules and inputs."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.modules_ = function, nn.ModuleList(modules)

    def forward(self, *inputs):
        return self.function(*self.modules_, *inputs)


torch.manual_seed(0)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """A batch normalization with its own statistics and parameters."""
    layer = nn.BatchNorm2d(channels)
    for tensor in (layer.running_mean, layer.weight, layer.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


def instance_norm(channels: int) -> nn.InstanceNorm2d:
    """An instance normalization with its own statistics, which are used in eval mode."""
    layer = nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)
    nn.init.normal_(layer.running_mean)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


img = torch.randn(2, 4, 9, 11)
seq = torch.randn(2, 5, 8)
CASES = {}


def case(name, function, *inputs, mods=()):
    CASES[name] = (Call(function, *mods).eval(), inputs)


for n in [
    "relu",
    "sigmoid",
    "tanh",
    "silu",
    "gelu",
    "elu",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "softplus",
    "mish",
    "relu6",
    "hardtanh",
    "selu",
    "celu",
    "softsign",
    "logsigmoid",
    "tanhshrink",
]:
    case(n, lambda x, n=n: getattr(F, n)(x), img)
for n in ["relu", "silu", "elu", "hardswish", "hardsigmoid", "leaky_relu", "relu6", "hardtanh", "mish", "selu"]:
    case(n + "_", lambda x, n=n: getattr(F, n)(x + 0, inplace=True), img)
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), img)
for n in [
    "exp",
    "sqrt",
    "rsqrt",
    "abs",
    "neg",
    "square",
    "floor",
    "ceil",
    "round",
    "sign",
    "sin",
    "cos",
    "erf",
    "log",
    "reciprocal",
    "trunc",
    "log1p",
    "expm1",
]:
    case("t_" + n, lambda x, n=n: getattr(torch, n)(x), img.abs() + 0.3)
tokens, table = torch.tensor([3, 1, 4, 1, 5, 0, 2]), torch.randn(6, 4)
starts = torch.tensor([0, 3, 3, 5])  # of bags, of which one is empty
for mode in ("sum", "mean", "max"):
    bags = partial(F.embedding_bag, weight=table, mode=mode)
    case("bag_" + mode, lambda i, o, bags=bags: bags(i, offsets=o), tokens, starts)
    case("bag_rows_" + mode, lambda i, bags=bags: bags(i), tokens[:6].reshape(2, 3))
    case("bag_padding_" + mode, lambda i, o, bags=bags: bags(i, offsets=o, padding_idx=1), tokens, starts)
    case("bag_closed_" + mode, lambda i, o, bags=bags: bags(i, offsets=o, include_last_offset=True), tokens, starts)
case(
    "bag_weighted",
    lambda i, o, w: F.embedding_bag(i, table, o, mode="sum", per_sample_weights=w),
    tokens,
    starts,
    torch.randn(7),
)
case("clamp", lambda x: x.clamp(-0.5, 0.5), img)
case("clampcrossed", lambda x: x.clamp(0.7, 0.2), img)
case("clampmin", lambda x: x.clamp(min=-0.5), img)
case("clampmax", lambda x: x.clamp(max=0.5), img)
case("clamp_", lambda x: (x + 0).clamp_(0), img)
case("add_alpha", lambda x, y: torch.add(x, y, alpha=0.3), img, img + 1)
case("sub_alpha", lambda x, y: torch.sub(x, y, alpha=2), img, img + 1)
case("rsub", lambda x: 3 - x, img)
case("add_int", lambda x: x + 3, torch.arange(6))
case("add_promote", lambda x: x + 1.5, torch.arange(6))
case("div_int", lambda x: x / 4, torch.arange(6))
case("floordiv", lambda x: x // 4, torch.arange(-6, 6))
case("mod", lambda x: x % 4, torch.arange(-6, 6))
case("floordivf", lambda x: x // 0.4, img)
case("pow2", lambda x: x**2, img)
case("pow3", lambda x: x**3, img)
case("pow.5", lambda x: x**0.5, img.abs())
case("powm", lambda x: x**-1.5, img.abs() + 1)
case("iadd", lambda x, y: (x * 1).add_(y), img, img)


def inplace_view(x):
    x = x * 1
    x[:, 0] += 1
    return x * 2


case("inplace_view", inplace_view, img)


def inplace_set(x):
    x = x * 1
    x[:, 1:3] = 0.5
    return x * 2


case("inplace_set", inplace_set, img)
case("cmp", lambda x, y: (x > y) | (x <= 0.1), img, img.flip(0))
case("where", lambda x: torch.where(x > 0, x, -2.0), img)
case("masked_fill", lambda x: x.masked_fill(x > 0, -float("inf")), img)
for k, a in dict(
    base=dict(),
    stride=dict(stride=2, padding=1),
    dil=dict(dilation=2, padding=2),
    grp=dict(groups=2),
    same=dict(padding="same"),
    same_even=dict(padding="same", kernel_size=4),
    valid=dict(padding="valid"),
    nobias=dict(bias=False),
    asym=dict(kernel_size=(1, 3), padding=(0, 1), stride=(2, 1)),
).items():
    a = {**dict(kernel_size=3), **a}
    case("conv2d_" + k, lambda m, x: m(x), img, mods=[nn.Conv2d(4, 6, **a)])
case("conv2d_unbatched", lambda m, x: m(x), img[0], mods=[nn.Conv2d(4, 6, 3)])
case("conv2d_reflect", lambda m, x: m(x), img, mods=[nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")])
case("conv1d", lambda m, x: m(x), seq, mods=[nn.Conv1d(5, 6, 3, padding=1, stride=2)])
case("conv1d_same", lambda m, x: m(x), seq, mods=[nn.Conv1d(5, 6, 4, padding="same")])
case("conv3d", lambda m, x: m(x), torch.randn(1, 3, 5, 6, 7), mods=[nn.Conv3d(3, 4, 3, padding=1)])
case("convT2d", lambda m, x: m(x), img, mods=[nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)])
case("convT2d_g", lambda m, x: m(x), img, mods=[nn.ConvTranspose2d(4, 6, 3, groups=2)])
case("convT1d", lambda m, x: m(x), seq, mods=[nn.ConvTranspose1d(5, 6, 3, stride=2)])
case("convT2d_d", lambda m, x: m(x), img, mods=[nn.ConvTranspose2d(4, 6, 3, dilation=2)])
for k, a in dict(base=(3,), s=(3, 2, 1), ceil=(3, 2, 1, 1, False, True), dil=(2, 1, 0, 2)).items():
    case("maxpool_" + k, lambda m, x: m(x), img, mods=[nn.MaxPool2d(*a)])
case("maxpool1d", lambda x: F.max_pool1d(x, 2, 2, ceil_mode=True), torch.randn(2, 3, 7))
case("maxpool_ceil2", lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True), img)
for k, a in dict(
    base=(3,),
    s=(3, 2, 1),
    ceil=(3, 2, 0, True),
    ceilpad=(3, 2, 1, True, False),
    nopadcount=(3, 2, 1, False, False),
    div=(2, 2, 0, False, True, 3),
).items():
    case("avgpool_" + k, lambda m, x: m(x), img, mods=[nn.AvgPool2d(*a)])
case("avgpool1d", lambda x: F.avg_pool1d(x, 2), seq)
for s in (1, 3, (1, 11), (3, 4)):
    case(f"adapt_{s}", lambda m, x: m(x), img, mods=[nn.AdaptiveAvgPool2d(s)])
case("adapt1d", lambda x: F.adaptive_avg_pool1d(x, 4), seq)
case("adaptmax", lambda x: F.adaptive_max_pool2d(x, (3, 11)), img)
case("adaptmax_uneven", lambda x: F.adaptive_max_pool2d(x, (4, 1)), img)
case("adaptmax_overlapping", lambda x: F.adaptive_max_pool2d(x[0], (7, 13)), img)
case("adaptmax1d_uneven", lambda x: F.adaptive_max_pool1d(x, 4), seq)
case("adaptmax3d_uneven", lambda x: F.adaptive_max_pool3d(x[None], (3, 2, 5)), img)
case("mean", lambda x: x.mean((2, 3)), img)
case("meanall", lambda x: x.mean(), img)
case("meank", lambda x: x.mean(-1, keepdim=True), img)
case("sum", lambda x: x.sum(1), img)
case("any", lambda x: ((x > 2).any(), (x > 9).any(), x.any(1), (x > 0).any((1, -1), keepdim=True)), img)
case("all", lambda x: ((x > -9).all(), (x > 0).all(), x.all(-1, keepdim=True)), img)
case("celu", lambda x: F.celu(x, 0.3), img)
case("hypot", lambda x: torch.hypot(x, x + 1), img)
case("erfc", lambda x: torch.erfc(x), img)
case("exp2", lambda x: torch.exp2(x), img)
case("fmax", lambda x: torch.fmax(torch.log(x), x) + torch.fmin(torch.log(x), x), img)
case("copysign", lambda x: torch.copysign(x, x - 0.5) + torch.copysign(x, torch.tensor(-0.0)), img)
case("cdist", lambda x: torch.cdist(x, x[:, :, :3]), img)
case("cdist_1", lambda x: torch.cdist(x, x[:, :, :3], p=1.0), img)
case("scatter_add", lambda x: torch.ones_like(x).scatter_add(1, x[:, :2].abs().long() % 4, x), img)
case("scatter_add_scalar", lambda x: torch.ones(()).scatter_add(0, torch.tensor(0), x[0, 0, 0, 0]), img)
case(
    "scatter_add_half",
    lambda x: torch.zeros(2).half().scatter_add(0, x.flatten().abs().long() % 2, x.flatten().half()),
    img,
)
case(
    "scatter_add_bool",
    lambda x: torch.zeros(4).bool().scatter_add(0, x.flatten().abs().long() % 4, x.flatten() > 1),
    img,
)
case("index_put_bool", lambda x: torch.zeros(4).bool().index_put((x.flatten().long() % 4,), x.flatten() > 1, True), img)
case("bincount", lambda x: torch.bincount(x.flatten().abs().long() % 6, minlength=8), img)
case("bincount_weights", lambda x: torch.bincount(x.flatten().abs().int() % 6, x.flatten(), 6).reshape(2, 3), img)
case("bincount_of_integers", lambda x: torch.bincount(x.flatten().abs().int() % 6, x.flatten().int(), 6), img)
for _name, _included in itertools.product(("sum", "mean", "prod", "amax", "amin"), (True, False)):
    case(
        f"scatter_reduce_{_name}_{_included}",
        lambda x, r=_name, i=_included: torch.ones_like(x).scatter_reduce(
            1, x[:, :2].abs().long() % 4, x, r, include_self=i
        ),
        img,
    )
case(
    "scatter_reduce_int",
    lambda x: torch.ones(2, 4).long().scatter_reduce(1, x[0, 0, :2, :3].long() % 4, x[0, 1].long(), "mean"),
    img,
)
for _name in ("sum", "prod", "amax", "amin"):
    case(
        f"scatter_reduce_bool_{_name}",
        lambda x, r=_name: (
            torch.ones(9).bool().scatter_reduce(0, x.flatten().abs().long() % 4, x.flatten() > 1, r, include_self=False)
        ),
        img,
    )
case("index_reduce", lambda x: torch.zeros(3, 4).index_reduce(0, torch.tensor([2, 0, 2]), x[0, 0, :3, :4], "amax"), img)
case("masked_scatter", lambda x: x.masked_scatter(x[:, :1] > 0, torch.arange(float(x.numel()))), img)
case(
    "put",
    lambda x: x.put(torch.tensor([[5, -1]]), torch.ones(1, 2)).put(torch.tensor([3, 3]), torch.ones(2), True),
    img,
)
case("sort_stable", lambda x: torch.sort(x.round(), dim=-1, stable=True, descending=True), img)
case("argsort_stable", lambda x: torch.argsort(x.round(), dim=1, stable=True), img)
case("kthvalue", lambda x: (x.kthvalue(2, 1)[0], x.kthvalue(1, -1, True)[1]), img)
case("nanmedian", lambda x: torch.where(x > 0.5, math.nan, x).nanmedian(-1)[0], img)
case("cummax", lambda x: (*torch.cummax(x.round(), -1), *torch.cummin(x.long(), 1)), img)
case("cummax_nan", lambda x: torch.cummax(torch.where(x > 1, math.nan, x), -1), img)
case("logcumsumexp", lambda x: torch.logcumsumexp(x * 20, -1), img)
case("searchsorted", lambda x: torch.searchsorted(torch.sort(x.round(), -1)[0], x.round(), right=True), img)
case(
    "searchsorted_1d", lambda x: torch.searchsorted(torch.arange(-2.0, 2.0, 0.25), torch.where(x > 1, math.nan, x)), img
)
case("searchsorted_sorter", lambda x: torch.searchsorted(x, x[..., :2], sorter=x.argsort(-1), out_int32=True), img)
case("bilinear", lambda m, x: m(x, x[..., :5]), seq, mods=[nn.Bilinear(8, 5, 3)])
case("dist", lambda x: torch.dist(x, x[:1], 3), img)
case("lgamma", lambda x: torch.lgamma(x * 3), img)
case("erfinv", lambda x: torch.erfinv(x.tanh()), img)
case("ldexp", lambda x: torch.ldexp(x, x.long()), img)
case("shifts", lambda x: ((x * 9).int() << 2, (x * 99).long() >> 3, (x * 9).int() << (x * 30).int()), img)
case("pow_of_integers", lambda x: (2 ** x.abs().long(), (x * 5).long() ** 3, x.long() ** x.abs().long()), img)
case("trunc_of_integers", lambda x: torch.div((x * 50).long(), -7, rounding_mode="trunc"), img)
case("rrelu", lambda x: F.rrelu(x), img)
case("take", lambda x: x.take(torch.tensor([[0, 5], [-1, 7]])), img)
case("hsplit", lambda x: x.tensor_split((1, 3), 1)[1] + x[:, :2].hsplit(2)[1], img)
case("cartesian_prod", lambda x: torch.cartesian_prod(x[0, 0, 0], x[0, 1, 0]), img)
case("adjoint", lambda x: x.mH @ x, img)
case("amax", lambda x: x.amax((1, 2)), img)
case("var", lambda x: x.var(1), img)
case("var0", lambda x: x.var((2, 3), unbiased=False, keepdim=True), img)
case("std", lambda x: x.std(1), img)
case("argmax", lambda x: x.argmax(1), img)
case("cumsum", lambda x: x.cumsum(1), img)
case("cumsum_of_flags", lambda x: (x > 0).cumsum(1), img)
case("max_dim", lambda x: x.max(1)[0], img)
case("norm", lambda x: F.normalize(x, dim=1), img)
case("prod", lambda x: x.prod(), torch.randn(3))
case("logsumexp", lambda x: x.logsumexp(1), img)
case("linear", lambda m, x: m(x), seq, mods=[nn.Linear(8, 3)])
case("linear_nb", lambda m, x: m(x), seq[0, 0], mods=[nn.Linear(8, 3, bias=False)])
case("matmul", lambda x, y: x @ y, seq, torch.randn(8, 3))
case("bmm", lambda x, y: torch.bmm(x, y), seq, torch.randn(2, 8, 3))
case(
    "addmm",
    lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
    torch.randn(3),
    torch.randn(4, 5),
    torch.randn(5, 3),
)
case("baddbmm", lambda b, x, y: torch.baddbmm(b, x, y), torch.randn(2, 5, 3), seq, torch.randn(2, 8, 3))
case("einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), seq, torch.randn(2, 8, 3))
case("mv", lambda x, y: x @ y, torch.randn(3, 4), torch.randn(4))
case("outer", lambda x, y: torch.outer(x, y), torch.randn(3), torch.randn(4))
q = torch.randn(2, 4, 6, 8)
case("sdpa", lambda x: F.scaled_dot_product_attention(x, x + 1, x * 2), q)
case("sdpa_causal", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), q)
case("sdpa_mask", lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), q, torch.randn(6, 6))
case("sdpa_bool", lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), q, torch.ones(6, 6).tril().bool())
case("sdpa_gqa", lambda x, k: F.scaled_dot_product_attention(x, k, k, enable_gqa=True, scale=0.2), q, q[:, :2])
case("mha", lambda m, x: m(x, x, x, need_weights=False)[0], seq, mods=[nn.MultiheadAttention(8, 2, batch_first=True)])
case("mha_w", lambda m, x: m(x, x, x)[0], seq, mods=[nn.MultiheadAttention(8, 2, batch_first=True)])
case("encoder", lambda m, x: m(x), seq, mods=[nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)])
case("bn", lambda m, x: m(x), img, mods=[batch_norm(4)])
case("ln", lambda m, x: m(x), seq, mods=[nn.LayerNorm(8)])
case("ln2", lambda m, x: m(x), seq, mods=[nn.LayerNorm((5, 8), elementwise_affine=False)])
case("gn", lambda m, x: m(x), img, mods=[nn.GroupNorm(2, 4)])
case("gn_rows", lambda m, x: m(x), torch.randn(5, 6), mods=[nn.GroupNorm(3, 6, affine=False)])
case("gn_far", lambda m, x: m(x), torch.randn(2, 4, 9, 11) * 0.3 + 3, mods=[nn.GroupNorm(2, 4)])
case("gn_native", lambda x: torch.native_group_norm(x, None, None, 2, 4, 99, 2, 1e-5)[0], img)
case("in_1d", lambda m, x: m(x), seq, mods=[nn.InstanceNorm1d(5, affine=True)])
case("in_tracked", lambda m, x: m(x), img, mods=[instance_norm(4)])
case("in", lambda m, x: m(x), img, mods=[nn.InstanceNorm2d(4, affine=True)])
case("in_nt", lambda m, x: m(x), img, mods=[nn.InstanceNorm2d(4)])
case("rms", lambda m, x: m(x), seq, mods=[nn.RMSNorm(8)])
case("lrn", lambda m, x: m(x), img, mods=[nn.LocalResponseNorm(3)])
case("emb", lambda m, x: m(x), torch.tensor([[1, 2], [3, 0]]), mods=[nn.Embedding(5, 4)])
case("softmax", lambda x: x.softmax(1), img)
case("logsoftmax", lambda x: x.log_softmax(-1), img)
case("softmin", lambda x: F.softmin(x, 1), img)
case("prelu", lambda m, x: m(x), img, mods=[nn.PReLU(4)])
case("prelu_slope_without_dimensions", lambda x: F.prelu(x, torch.tensor(0.3)), img)
case("prelu_of_scalar", lambda x: F.prelu(x.sum(), torch.tensor([0.3])), img)
for n in [2, 1, 0, 3, -1, 0.5, float("inf"), -float("inf")]:
    case(f"vector_norm_{n}", lambda x, n=n: torch.linalg.vector_norm(x, n, (1, 2), True), img)
    case(f"vector_norm_{n}_all", lambda x, n=n: torch.linalg.vector_norm(x, n), img)
case("vector_norm_dtype", lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float64), img)
case("normalize", lambda x: F.normalize(x, dim=1), img)
case("linalg_norm", lambda x: torch.linalg.norm(x, dim=(1, 2)), img)
case("linalg_norm_1", lambda x: torch.linalg.norm(x, 1, dim=-1), img)
case("linalg_norm_fro", lambda x: torch.linalg.norm(x, "fro", dim=(0, 2)), img)
case("norm", lambda x: x.norm(3, dim=(1, 2)), img)
case("glu", lambda x: F.glu(x, 1), img)
case("view", lambda x: x.view(2, -1), img)
case("flatten", lambda x: x.flatten(1, 2), img)
case("unflatten", lambda x: x.unflatten(1, (2, -1)), img)
case("squeeze", lambda x: x[:1].squeeze(), img)
case("unsqueeze", lambda x: x.unsqueeze(-1), img)
case("permute", lambda x: x.permute(0, 2, 3, 1).contiguous(), img)
case("T", lambda x: x.t(), torch.randn(3, 4))
case("mT", lambda x: x.mT, img)
case("movedim", lambda x: x.movedim(1, -1), img)
case("expand", lambda x: x[:, :1].expand(-1, 3, -1, -1), img)
case("repeat", lambda x: x.repeat(2, 1, 1, 1), img)
case("cat", lambda x: torch.cat([x, x * 2], 1), img)
case("stack", lambda x: torch.stack([x, x + 1], -1), img)
case("slice", lambda x: x[:, 1:, ::2, -3:], img)
case("select", lambda x: x[:, -1], img)
case("split", lambda x: torch.split(x, 3, 2)[2], img)
case("chunk", lambda x: sum(c.sum() for c in x.chunk(3, 3)), img)
case("unbind", lambda x: x.unbind(1)[1], img)
case("pad", lambda x: F.pad(x, (1, 2, 0, 1)), img)
case("padneg", lambda x: F.pad(x, (-1, 2), value=3), img)
case("padreflect", lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), img)
case("padrep", lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), img)
case("roll", lambda x: x.roll((1, -2), (2, 3)), img)
case("flip", lambda x: x.flip(2), img)
case("index", lambda x: x[:, torch.tensor([0, 2, 1])], img)
case("index_two", lambda x: x[:, torch.tensor([0, 2, 1]), torch.tensor([-1, 4, 0])], img)
case("index_apart", lambda x: x[torch.tensor([[1], [0]]), :, torch.tensor([-1, 4, 0])], img)
case("index_at_maxima", lambda x: x[:, :, x.argmax(2)[0], torch.tensor(2)], img)
case("gather", lambda x: x.gather(1, torch.zeros(2, 2, 9, 11, dtype=torch.long)), img)
case("pixel", lambda x: F.pixel_shuffle(x, 2), img)
case("unpixel", lambda x: F.pixel_unshuffle(x[..., :8, :10], 2), img)
case("tril", lambda x: x.tril(), img)
case("meshgrid_xy", lambda x: torch.meshgrid(x[0, 0, 0], x[0, 1, 0], indexing="xy"), img)
case("meshgrid_ij", lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], x[0, :, 0, 0], indexing="ij"), img)
case("prod", lambda x: x.prod() + x.prod(1).sum() + x.prod(-1, keepdim=True), img)
for n in ("bilinear", "nearest", "bicubic"):
    case("grid_" + n, lambda x, n=n: F.grid_sample(x, x[:, :3, :7, :2] * 0.7, n, "border", False), img)
case("grid_zeros", lambda x: F.grid_sample(x, x[:, :3, :7, :2], align_corners=True), img)
case("grid_affine", lambda x: F.grid_sample(x, F.affine_grid(x[:, 0, :2, :3], (2, 4, 5, 6), False)), img)
case("meshgrid", lambda x: x + torch.arange(11) + torch.ones(9, 1), img)
case("tile", lambda x: x.tile(2), img)
case("chshuffle", lambda x: F.channel_shuffle(x, 2), img)
case("reshape0", lambda x: x.reshape(x.shape[0], x.size(1), -1), img)
case("split_sizes", lambda x: torch.split(x, [1, 3], 1)[1], img)
case("narrow", lambda x: x.narrow(1, 1, 2), img)
case("topk", lambda x: x.topk(2, 1)[0], img)
case("topk_unsorted", lambda x: x.topk(3, 1, largest=False, sorted=False)[0].sum(1), img)
case("topk_number", lambda x: x.sum().topk(1)[0], img)
case("up_near", lambda x: F.interpolate(x, scale_factor=2), img)
case("up_bil", lambda x: F.interpolate(x, size=(18, 22), mode="bilinear"), img)
case("up_bil_ac", lambda x: F.interpolate(x, size=(18, 22), mode="bilinear", align_corners=True), img)
case("up_down", lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), img)
case("up_near_odd", lambda x: F.interpolate(x, size=(5, 7)), img)
for n in ("nearest", "bilinear", "bicubic"):  # places follow from the factor, not from the size, which is cut off
    case(f"up_scale_{n}", lambda x, n=n: F.interpolate(x, scale_factor=(1.7, 0.6), mode=n), img)
    case(f"up_scale_twice_{n}", lambda x, n=n: F.interpolate(x, scale_factor=2.0, mode=n), img)
    case(f"up_recomputed_{n}", lambda x, n=n: F.interpolate(x, None, 1.7, n, recompute_scale_factor=True), img)
case("up_scale_corners", lambda x: F.interpolate(x, None, 1.7, "bilinear", True), img)
case("up_bic", lambda x: F.interpolate(x, size=(18, 22), mode="bicubic"), img)
for n in ("bilinear", "bicubic"):
    for c in (False, True):
        case(f"up_aa_{n}_{c}", lambda x, n=n, c=c: F.interpolate(x, (5, 18), None, n, c, antialias=True), img)
    case(f"up_aa_{n}_scale", lambda x, n=n: F.interpolate(x, None, (0.6, 1.7), n, antialias=True), img)
    case(f"up_aa_{n}_constant", lambda x, n=n: x + F.interpolate(img, (9, 11), None, n, antialias=True).mean(), img)
case("maxima", lambda x: F.max_pool2d(x, (2, 3), 2, 1, return_indices=True), img)
case("maxima_ceil", lambda x: F.max_pool2d(x[0], 3, 2, dilation=2, ceil_mode=True, return_indices=True), img)
case("unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x[..., :8, :10], 2, return_indices=True), 2), img)
case("unfold", lambda x: F.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1)), img)
case("windows", lambda x: (x.unfold(2, 3, 2), x.unfold(-1, 11, 1), x.unfold(0, 1, 3)), img)
case("fold", lambda x: F.fold(F.unfold(x, 3, padding=1), (9, 11), 3, padding=1), img)
case("fold_patches", lambda x: F.fold(F.unfold(x[0, :, :8, :9], 2, stride=2), (8, 9), 2, stride=2), img)
case("put", lambda x: x.index_put((torch.tensor([1, 0]), torch.tensor([-1, 2])), x[0, :2]), img)


def put(x, at, values):
    y = x * 2
    y[at] = values
    return y


case("put_inside", lambda x: put(x, (slice(None), torch.tensor([[1], [0]]), torch.tensor([-1, 2])), x[:, :1, :1]), img)
case("put_apart", lambda x: put(x, (torch.tensor([1, 0]), slice(None), torch.tensor([-1, 2])), x[:, :, 0, :1]), img)
case("put_masked", lambda x: put(x, (torch.arange(99).reshape(9, 11) % 7 == 1).nonzero(as_tuple=True), 0.5), img[0, 0])
case("put_masked_rows", lambda x, m: put(x, m, x[:3] * 2), img[0, 0], torch.tensor([1, 0, 0, 1, 0, 0, 1, 0, 0]).bool())
case("put_masked_row", lambda x, m: put(x, m, x[:1] * 2), img[0, 0], torch.tensor([1, 0, 0, 1, 0, 0, 1, 0, 0]).bool())
case("put_at_maxima", lambda x: x.index_put((torch.arange(4), x.argmax(1)), torch.tensor(9.0)), torch.randn(4, 6))
case("put_added", lambda x: x.index_put((torch.tensor([1, 1]), torch.tensor([0, 2])), x[0, :2], accumulate=True), img)
case("put_where", lambda x: x.index_put((x > 0,), torch.tensor(2.0)), img)


def counted(x):
    """In-place operators on constants, as in the buckets of relative positions."""
    distance = torch.arange(11)[None] - torch.arange(9)[:, None]
    buckets = (distance < 0).long() * 16
    buckets += torch.where(distance.abs() < 8, distance.abs(), distance.clamp(max=7))
    return x + buckets


case("constants_in_place", counted, img)
case("todouble", lambda x: x.double() * 2, img)
case("tohalf", lambda x: x.half().float(), img)
case("toint", lambda x: (x * 10).int(), img)
case("type_as", lambda x, y: x.type_as(y), torch.arange(4), img)
case("dropout", lambda m, x: m(x), img, mods=[nn.Dropout()])
case("zeros_like", lambda x: torch.zeros_like(x) + torch.full_like(x, 2) + x.new_ones(11), img)
case("twoout", lambda x: (x + 1, x * 2), img)
case("dictout", lambda x: {"a": x + 1, "b": [x * 2]}, img)
case("lstm", lambda m, x: m(x)[0], seq, mods=[nn.LSTM(8, 6)])
case("gru", lambda m, x: m(x)[0], seq, mods=[nn.GRU(8, 6, batch_first=True)])


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The operator of Hugging Face's models. Rows behind the last end are 0."""
    result, start = x.new_zeros(len(x), weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        result[start:end] = x[start:end] @ weight
        start = end
    return result


@grouped.register_fake
def _(x, weights, ends):
    return x.new_empty(x.shape[0], weights.shape[2])


def experts(x, weights, chosen):
    """A mixture of experts, as models have it that sort rows by expert."""
    rows = x[torch.arange(len(chosen)) % len(x)]
    counts = torch.histc(chosen.float(), len(weights), 0, len(weights) - 1)
    return grouped(rows, weights, counts.cumsum(0, dtype=torch.int32) - 1)


case("few_experts", experts, torch.randn(3, 8), torch.randn(4, 8, 8), torch.tensor([0, 2, 2]))
case("many_rows", experts, torch.randn(3, 8), torch.randn(4, 8, 8), torch.tensor([0, 0, 0, 1, 3, 3, 3]))
for k, (n, a, b) in dict(base=(5, -1, 1), wide=(7, -3, 2.5), one=(1, 0, 0.5)).items():
    case("histc_" + k, lambda x, n=n, a=a, b=b: torch.histc(x, n, a, b), img)
case("histc_ends", lambda x: torch.histc(x, 4, 0, 3), torch.tensor([0.0, 3, 1, 4, -1, 3, torch.nan, 2, torch.inf]))
case("repeats", lambda n: torch.repeat_interleave(n, output_size=7), torch.tensor([2, 0, 4, 1]))
case("repeats_of_data", lambda x, n: x.repeat_interleave(n, 1, output_size=7), img, torch.tensor([2, 0, 4, 1]))
case("mask_constant", lambda x: x + img[torch.arange(2) > 0].sum() + torch.masked_select(img, img > 0).sum(), img)
case("repeats_constant", lambda x: x.repeat_interleave(torch.tensor([2, 0, 4, 1]), 1), img)


def nograd(x):
    with torch.no_grad():
        y = x * 2
    return y + 1


case("nograd", nograd, img)
case("eye", lambda x: x + torch.eye(9, 11), img)
case("buffer64", lambda x: x + torch.tensor(2**40 + 1), torch.arange(3))
case("logical", lambda x: torch.logical_and(x > 0, x < 1).float(), img)
case("isnan", lambda x: torch.nan_to_num(x), img)
case("rot", lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1), seq)
case("finfo", lambda x: (1 - x) * torch.finfo(torch.float32).min, img)

# ---- Fourier transforms ------------------------------------------------------------------------------------------

for dims in ([1], [1, 2], [-1, 0]):
    for norm in ("backward", "ortho", "forward"):
        name = f"{dims} {norm}"
        case(f"fftn {name}", lambda x, d=dims, n=norm: torch.fft.fftn(x, dim=d, norm=n).real, seq)
        case(f"ifftn {name}", lambda x, d=dims, n=norm: torch.fft.ifftn(x, dim=d, norm=n).imag, seq)
        case(f"rfftn {name}", lambda x, d=dims, n=norm: torch.view_as_real(torch.fft.rfftn(x, dim=d, norm=n)), seq)
case("fft abs", lambda x: torch.fft.fft(x).abs() + x.abs(), seq)
case("fft of complex", lambda x: torch.fft.fft2(torch.view_as_complex(x.reshape(2, 5, 4, 2))).real, seq)
for length in (8, 9):
    case(f"irfft {length}", lambda x, n=length: torch.fft.irfft(torch.fft.rfft(x, n=n), n=n), torch.randn(3, length))
    case(f"irfft2 {length}", lambda x, n=length: torch.fft.irfft2(torch.fft.rfft2(x), s=(4, n)), torch.randn(4, length))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    module, inputs = CASES[name]
    program = torch.export.export(module, inputs)
    found = Interpreter(from_exported_program(program)).run([value.numpy() for value in inputs]).values()
    for golden, value in zip(run_torch(program, *inputs), found, strict=True):
        assert value.shape == golden.shape and value.dtype == golden.dtype
        np.testing.assert_allclose(value, golden, rtol=1e-5, atol=2e-6)


REFUSED = {
    "random": (lambda x: x + torch.randn(3), torch.zeros(3)),
    "dropout": (lambda x: F.dropout(x, training=True), torch.ones(3)),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).float() * 2, torch.ones(3)),
    "offsets of bags": (lambda x: torch.embedding_bag(torch.ones(4, 2), x.long(), torch.tensor([0]))[1], torch.ones(3)),
    "complex": (lambda x: torch.fft.fft(x).tan().real, torch.ones(3)),
    "bincount without minlength": (lambda x: torch.bincount(x.long()), torch.ones(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, x = REFUSED[name]
    with pytest.raises(UnsupportedOperatorError, match=r"node|result 'getitem"):
        from_exported_program(torch.export.export(Call(function), (x,)))


def test_refusals_have_remedies():
    for name, remedy in {"bincount without minlength": "give minlength", "float8": "weights of float8 alone"}.items():
        function, x = REFUSED[name]
        with pytest.raises(UnsupportedOperatorError, match=remedy):
            from_exported_program(torch.export.export(Call(function), (x,)))


def test_operators_with_side_effects_are_named():
    program = torch.export.export(Call(torch.linalg.inv), (torch.eye(3),))
    with pytest.raises(UnsupportedOperatorError, match=r"side effects .*_linalg_check_errors"):
        from_exported_program(program)


def test_a_source_that_is_too_short_for_its_mask_is_refused():
    program = torch.export.export(Call(lambda x, y: x.masked_scatter(x > 0, y)), (torch.zeros(2, 3), torch.ones(2)))
    engine = build(from_exported_program(program))
    with pytest.raises(InputError):
        engine.run([np.ones((2, 3), np.float32), np.ones(2, np.float32)])


def test_a_buffer_that_changes_is_a_state():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    module = from_exported_program(torch.export.export(Counter(), (torch.ones(3),)))
    engine = build(module)
    assert [engine(np.zeros(3, np.float32))[0] for _ in range(2)] == [1, 2]


class Halves(nn.Module):
    def forward(self, x):
        largest = x.float().max()
        return x * 0.1, x / 0.1, 0.3 / x, x * largest, x / largest, torch.tensor(0.1) * x


def test_float16_is_multiplied_by_float32_numbers():
    """Rounding the number to float16 first would change a third of the products."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 40)).astype(np.float16))
    program = torch.export.export(Halves(), (x,), strict=False)
    found = build(from_exported_program(program))(x.numpy())
    for ours, theirs in zip(found, Halves()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())

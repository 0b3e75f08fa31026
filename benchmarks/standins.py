"""Small trained networks with data made by script: stand-ins for real networks that are hard to quantize.

Each is trained with PyTorch in a minute or two on one core, and stored as an ONNX file. Text is rendered with the fonts
that matplotlib ships.

text:    text recognition: hard swish, depthwise convolutions, squeeze and excite, attention; a sequence of characters
regions: text detection: features of three scales joined, transposed convolutions, a map of probabilities
glyphs:  classification: inverted residual blocks with relu6
pitch:   notes in audio: a filter bank on the waveform, logarithms, harmonics side by side, sigmoid outputs near 0
shapes:  object detection: SiLU, joined branches, two scales; boxes in pixels and probabilities in one output
upscale: super-resolution: a residual on top of the enlarged image
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import networks_to_train as nets

OPSET = 17
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CALIBRATION, HELD_OUT = 32, 64
SAMPLE_RATE = 8000


@dataclass(frozen=True)
class StandIn:
    """A network and its data: float32 arrays (N, …), one sample per run.

    unit: of `score`, what the task asks for, from the outputs of all held-out samples: higher is better
    """

    name: str
    path: Path
    calibration: np.ndarray
    held_out: np.ndarray
    truth: np.ndarray
    unit: str
    _score: Callable[[Sequence[np.ndarray], np.ndarray], float]

    def score(self, outputs: Sequence[Sequence[np.ndarray]]) -> float:
        """Of the outputs of each held-out sample."""
        return float(self._score([np.concatenate(arrays) for arrays in zip(*outputs, strict=True)], self.truth))


@dataclass(frozen=True)
class _Task:
    """draw: rng, count → inputs and what a network should find; loss: outputs, truth → a scalar tensor"""

    network: Callable[[], Any]
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    loss: Callable[[Any, Any], Any]
    score: Callable[[Sequence[np.ndarray], np.ndarray], float]
    unit: str
    steps: int
    batch: int = 16
    rate: float = 4e-3


def make(name: str, folder: Path, steps: int | None = None) -> StandIn:
    """Train the network, unless its file is in `folder`, and draw its data. steps: of training; None: enough."""
    task = TASKS[name]
    path = folder / f"{name}.onnx"
    calibration, _ = task.draw(np.random.default_rng([1, 1]), CALIBRATION)
    held_out, truth = task.draw(np.random.default_rng([1, 2]), HELD_OUT)
    if not path.exists():
        _export(_trained(task, task.steps if steps is None else steps), held_out[:1], path)
    return StandIn(name, path, calibration, held_out, truth, task.unit, task.score)


def _trained(task: _Task, steps: int) -> Any:
    import torch

    torch.manual_seed(0)
    network = task.network().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=task.rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, max(2, steps))
    rng = np.random.default_rng([1, 0])
    for _ in range(steps):
        data, truth = (torch.from_numpy(array) for array in task.draw(rng, task.batch))
        optimizer.zero_grad()
        task.loss(network(data), truth).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return network.eval()


def _export(network: Any, sample: np.ndarray, path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is an older one
        data = (torch.from_numpy(sample),)
        torch.onnx.export(network, data, str(path), dynamo=False, opset_version=OPSET, input_names=["x"])


# ---- text --------------------------------------------------------------------------------------------------------


@cache
def _font(number: int, size: int) -> Any:
    import matplotlib
    from PIL import ImageFont

    files = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("DejaVuS*.ttf"))
    files = [file for file in files if "Display" not in file.name]
    return ImageFont.truetype(str(files[number % len(files)]), size)


def _paper(rng: np.random.Generator, height: int, width: int) -> Any:
    """An image of a slope from one light colour to another."""
    from PIL import Image

    ends = rng.uniform(150, 255, size=(2, 3))
    slope = np.linspace(0, 1, width)[None, :, None] * rng.uniform(0.3, 1)
    array = np.broadcast_to(ends[0] + (ends[1] - ends[0]) * slope, (height, width, 3))
    return Image.fromarray(array.astype(np.uint8))


def _photo(image: Any, rng: np.random.Generator) -> np.ndarray:
    """As a camera sees it, −1 to 1, channels first."""
    array = np.asarray(image, np.float32) / 127.5 - 1
    return (array * rng.uniform(0.6, 1) + rng.normal(size=array.shape) * 0.04).transpose(2, 0, 1).clip(-1, 1)


def _write(draw: Any, rng: np.random.Generator, at: tuple[float, float], text: str, size: int) -> tuple[int, ...]:
    font = _font(int(rng.integers(100)), size)
    ink = tuple(int(c) for c in rng.integers(0, 110, size=3))
    draw.text(at, text, fill=ink, font=font)
    return tuple(int(n) for n in draw.textbbox(at, text, font=font))


def _word(rng: np.random.Generator, low: int, high: int) -> str:
    return "".join(rng.choice(list(LETTERS), size=int(rng.integers(low, high))))


def _lines(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lines of text, and for every 4 columns the letter there, 0 between letters."""
    from PIL import ImageDraw

    images, truth = [], np.zeros((count, 32), np.int64)
    for index in range(count):
        image = _paper(rng, 32, 128)
        draw, x, size = ImageDraw.Draw(image), float(rng.uniform(2, 12)), int(rng.integers(17, 24))
        number, ink = int(rng.integers(100)), tuple(int(c) for c in rng.integers(0, 110, size=3))
        top, font = float(rng.uniform(0, 28 - size)), _font(number, size)
        for letter in _word(rng, 4, 9):
            left, _, right, _ = draw.textbbox((x, top), letter, font=font)
            if right > 126:
                break
            draw.text((x, top), letter, fill=ink, font=font)
            middle = int((left + right) / 8)
            truth[index, middle] = 1 + LETTERS.index(letter)
            x = right + float(rng.uniform(2, 5))
        images.append(_photo(image, rng))
    return np.stack(images).astype(np.float32), truth


def _spotting(found: Any, truth: Any) -> Any:
    import torch

    logits = torch.log(found.clamp_min(1e-9)).transpose(1, 2)
    weight = torch.ones(len(LETTERS) + 1)
    weight[0] = 0.3
    return torch.nn.functional.cross_entropy(logits, truth, weight)


def _read(row: np.ndarray) -> str:
    """The letters of a sequence, each run of equal ones once."""
    return "".join(
        LETTERS[one - 1] for one, before in zip(row, np.concatenate([[0], row]), strict=False) if one and one != before
    )


def _lines_read(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    rows = outputs[0].argmax(2)
    return 100 * np.mean([_read(row) == _read(right) for row, right in zip(rows, truth, strict=True)])


def _pages(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Words here and there, and where they are."""
    from PIL import ImageDraw

    images, truth = [], np.zeros((count, 1, 96, 96), np.float32)
    for index in range(count):
        image = _paper(rng, 96, 96)
        draw = ImageDraw.Draw(image)
        for _ in range(int(rng.integers(0, 3))):  # what is no text
            corner = rng.integers(0, 80, size=2)
            box = [*map(int, corner), *map(int, corner + rng.integers(4, 30, size=2))]
            draw.rectangle(box, outline=tuple(int(c) for c in rng.integers(0, 160, size=3)))
        y = float(rng.uniform(0, 20))
        while y < 76:
            size = int(rng.integers(9, 18))
            box = _write(draw, rng, (float(rng.uniform(0, 50)), y), _word(rng, 2, 6), size)
            truth[index, 0, max(0, box[1]) : box[3], max(0, box[0]) : box[2]] = 1
            y += size + float(rng.uniform(4, 30))
        images.append(_photo(image, rng))
    return np.stack(images).astype(np.float32), truth


def _overlap(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    found, right = outputs[0] > 0.5, truth > 0.5
    return 100 * np.logical_and(found, right).sum() / np.logical_or(found, right).sum()


def _single(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Single letters, and which."""
    from PIL import ImageDraw

    images, truth = [], rng.integers(0, len(LETTERS), size=count)
    for letter in truth:
        image = _paper(rng, 32, 32)
        size = int(rng.integers(18, 27))
        at = float(rng.uniform(0, 26 - size * 0.7)), float(rng.uniform(-3, 28 - size))
        _write(ImageDraw.Draw(image), rng, at, LETTERS[letter], size)
        images.append(_photo(image.rotate(float(rng.uniform(-12, 12)), fillcolor=(200, 200, 200)), rng))
    return np.stack(images).astype(np.float32), truth.astype(np.int64)


def _right(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    return 100 * np.mean(outputs[0].argmax(1) == truth)


# ---- audio -------------------------------------------------------------------------------------------------------


def _music(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Notes with overtones that fade over noise, and (2, frames, keys): which sound, and which begin."""
    length = nets.HOP * nets.FRAMES
    time = np.arange(length) / SAMPLE_RATE
    sounds, truth = np.zeros((count, length)), np.zeros((count, 2, nets.FRAMES, nets.KEYS), np.float32)
    for index in range(count):
        for _ in range(int(rng.integers(1, 6))):
            key, start = int(rng.integers(0, nets.KEYS - 6)), int(rng.integers(-8, nets.FRAMES - 4))
            stop = min(nets.FRAMES, start + int(rng.integers(6, 24)))
            since = time - start * nets.HOP / SAMPLE_RATE
            loud = np.where(
                (since >= 0) & (time < stop * nets.HOP / SAMPLE_RATE), np.exp(-since * rng.uniform(1, 6)), 0
            )
            tone = np.zeros(length)
            for overtone in range(1, 7):
                frequency = nets.LOWEST * 2 ** (key / 12) * overtone
                if frequency < SAMPLE_RATE / 2.2:
                    power = rng.uniform(0.3, 1) / overtone
                    tone += power * np.sin(2 * np.pi * frequency * time + rng.uniform(0, 6.3))
            sounds[index] += loud * tone * np.exp(rng.normal() * 0.7) * 0.2
            truth[index, 0, max(0, start) : stop, key] = 1
            if start >= 0:
                truth[index, 1, start : start + 2, key] = 1
        sounds[index] += rng.normal(size=length) * np.exp(rng.uniform(-9, -5))
    return np.clip(sounds, -1, 1).astype(np.float32), truth


def _events(found: Any, truth: Any) -> Any:
    import torch

    loss = torch.zeros(())
    for one, right in zip(found, (truth[:, 0], truth[:, 1]), strict=True):
        loss = loss + torch.nn.functional.binary_cross_entropy(one, right, 1 + 2 * right)
    return loss


def _notes_found(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    """F-measure of the sounding notes."""
    found, right = outputs[0] > 0.5, truth[:, 0] > 0.5
    return 200 * np.logical_and(found, right).sum() / (found.sum() + right.sum())


# ---- objects -----------------------------------------------------------------------------------------------------


def _scenes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Discs, boxes and triangles, and for each of up to 3: class, left, top, right, bottom; class −1: none."""
    from PIL import ImageDraw

    images, truth = [], np.full((count, 3, 5), -1, np.float32)
    for index in range(count):
        image = _paper(rng, 96, 96)
        draw = ImageDraw.Draw(image)
        for number in range(int(rng.integers(1, 4))):
            size = rng.integers(14, 46, size=2)
            left, top = (int(rng.integers(0, 96 - side)) for side in size)
            right, bottom = left + int(size[0]), top + int(size[1])
            kind, ink = int(rng.integers(3)), tuple(int(c) for c in rng.integers(0, 160, size=3))
            if kind == 0:
                draw.ellipse((left, top, right, bottom), fill=ink)
            elif kind == 1:
                draw.rectangle((left, top, right, bottom), fill=ink)
            else:
                draw.polygon(((left, bottom), ((left + right) // 2, top), (right, bottom)), fill=ink)
            truth[index, number] = kind, left, top, right, bottom
        images.append(_photo(image, rng))
    return np.stack(images).astype(np.float32), truth


def _boxes_and_classes(found: Any, truth: Any) -> Any:
    """Each object belongs to the cells around its middle, at the scale for its size."""
    import torch

    boxes, classes = found[:, :4].transpose(1, 2), found[:, 4:].transpose(1, 2)
    centers, strides = nets.cells()
    wanted = torch.zeros_like(classes)
    loss = torch.zeros(())
    for number in range(truth.shape[1]):
        kind, corner = truth[:, number, 0], truth[:, number, 1:]
        middle, size = (corner[:, :2] + corner[:, 2:]) / 2, (corner[:, 2:] - corner[:, :2]).amax(1)
        near = ((centers[None] - middle[:, None]).abs().amax(2) <= strides * 0.8) & (kind >= 0)[:, None]
        near &= (strides[None] == torch.where(size > 28, 16.0, 8.0)[:, None]) | (strides[None] == 0)
        sample, cell = near.nonzero(as_tuple=True)
        wanted[sample, cell] = torch.nn.functional.one_hot(kind[sample].long(), 3).float()
        sides = torch.cat([middle, corner[:, 2:] - corner[:, :2]], 1)[sample]
        loss = loss + torch.nn.functional.smooth_l1_loss(boxes[sample, cell] / 8, sides / 8, reduction="sum")
    weighted = torch.nn.functional.binary_cross_entropy(classes, wanted, 1 + 4 * wanted, reduction="sum")
    return (loss + weighted) / truth.shape[0]


def _objects_found(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    """Share of the objects whose best cell overlaps them by half or more, with the right class."""
    found = []
    for output, objects in zip(outputs[0], truth, strict=True):
        for kind, *corner in objects[objects[:, 0] >= 0]:
            score = output[4:].max(0) * (output[4:].argmax(0) == kind)
            overlaps = [_box_overlap(output[:4, cell], corner) for cell in np.flatnonzero(score > 0.4)]
            found.append(max(overlaps, default=0) >= 0.5)
    return 100 * float(np.mean(found))


def _box_overlap(box: np.ndarray, corner: Sequence[float]) -> float:
    x, y, w, h = box
    left, top, right, bottom = corner
    wide = min(x + w / 2, right) - max(x - w / 2, left)
    high = min(y + h / 2, bottom) - max(y - h / 2, top)
    common = max(0, wide) * max(0, high)
    return common / (w * h + (right - left) * (bottom - top) - common)


# ---- images ------------------------------------------------------------------------------------------------------


def _small_and_large(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 48 × 48, 0 to 1, and the same at 96 × 96."""
    large = ((_pages(rng, count // 2)[0] + 1) / 2, (_scenes(rng, count - count // 2)[0] + 1) / 2)
    images = np.concatenate(large).astype(np.float32)
    return images.reshape(count, 3, 48, 2, 48, 2).mean((3, 5)), images


def _difference(found: Any, truth: Any) -> Any:
    return (found - truth).abs().mean() * 10


def _psnr(outputs: Sequence[np.ndarray], truth: np.ndarray) -> float:
    return -10 * float(np.log10(np.square(outputs[0].clip(0, 1) - truth, dtype=np.float64).mean()))


def _classes(found: Any, truth: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(found, truth)


def _map(found: Any, truth: Any) -> Any:
    import torch

    return torch.nn.functional.binary_cross_entropy(found, truth)


TASKS = {
    "text": _Task(nets.text, _lines, _spotting, _lines_read, "% of lines", 1200),
    "regions": _Task(nets.regions, _pages, _map, _overlap, "% overlap", 400, 8),
    "glyphs": _Task(nets.glyphs, _single, _classes, _right, "% right", 700, 32),
    "pitch": _Task(nets.pitch, _music, _events, _notes_found, "% F", 500, 8),
    "shapes": _Task(nets.shapes, _scenes, _boxes_and_classes, _objects_found, "% found", 700, 16),
    "upscale": _Task(nets.upscale, _small_and_large, _difference, _psnr, "dB PSNR", 300, 8, 2e-3),
}
NAMES = tuple(TASKS)

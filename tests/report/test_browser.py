"""The page in a real headless Chromium: at two widths, light and dark. The extra `test` brings what drives the browser,
not the browser, of 400 MB: the tests take the one on the PATH, or Playwright's own, and skip where there is neither."""

from __future__ import annotations

import os
import shutil

import pytest

import qnn_ext
from qnn_ext.report import Request, model_report, write_page
from tests.cases.bundled import module_of

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable", "microsoft-edge")


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not os.path.exists(path):
            pytest.skip(
                f"no browser: none of {', '.join(BROWSERS)} on the PATH; `playwright install chromium` gets one"
            )
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page about one model, and one with two side by side, timed."""
    folder = tmp_path_factory.mktemp("pages")
    found = module_of("digits_cnn_int8.tflite")
    write_page(folder / "one.html", [model_report(found, Request(), "digits")], "one")
    engine = qnn_ext.build(module_of("digits_transformer_float32.onnx"), num_threads=1)
    timed = [model_report(model, Request(profile=True), name) for name, model in (("a", engine), ("b", found))]
    write_page(folder / "two.html", timed, "two")
    return folder


@pytest.fixture
def opened(browser, pages):
    """Opens a page, and fails at the end if it logged anything, or asked for anything but itself."""
    problems: list[str] = []
    contexts = []

    def open_page(name: str, width: int = 1400, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
        page.goto((pages / name).as_uri())
        page.wait_for_selector(".node")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_it_fits(opened, width, scheme):
    page = opened("two.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    light = page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")
    assert (sum(map(int, light)) > 384) == (scheme == "light")
    boxes = page.locator("#canvas svg[role=img]").bounding_box()
    assert boxes["width"] > 250 and boxes["height"] > 250


def test_an_operator_leads_to_its_kernel_and_back(opened):
    page = opened("one.html")
    page.locator(".node", has_text="depthwise conv2d").first.click()
    details = page.locator("#details")
    assert "T1 = Σ a·w" in details.inner_text() and "strides" in details.inner_text()
    details.get_by_role("button", name="depthwise conv2d +").click()
    assert page.locator("#after").get_attribute("aria-pressed") == "true"
    assert "implementation" in details.inner_text()
    details.get_by_role("button", name="requantize").first.click()
    assert page.locator("#before").get_attribute("aria-pressed") == "true"
    assert page.locator(".node.chosen").count() == 1


def test_search_marks_what_it_finds(opened):
    page = opened("one.html")
    page.fill("#search", "requantize")
    found = page.locator(".node.found").count()
    assert found > 2 and page.locator("#matches").inner_text() == f"{found} found"
    page.press("#search", "Enter")
    assert page.locator("#matches").inner_text() == f"1 of {found}"
    page.fill("#search", "nothing has this name")
    assert page.locator("#matches").inner_text() == "0 found"


def test_boxes_do_not_overlap(opened):
    for name in ("one.html", "two.html"):
        page = opened(name)
        assert page.evaluate(
            """() => {
                const boxes = [...view.places.values()];
                const beside = (a, b) => Math.abs(a.x - b.x) >= (a.width + b.width) / 2;
                const below = (a, b) => Math.abs(a.y - b.y) >= (a.height + b.height) / 2;
                return boxes.every((a, i) => boxes.slice(i + 1).every((b) => beside(a, b) || below(a, b)));
            }"""
        )


def test_zoom_and_the_whole_graph(opened):
    page = opened("one.html")
    before = page.evaluate("view.zoom")
    page.click("#in")
    assert page.evaluate("view.zoom") == pytest.approx(1.3 * before)
    page.click("#fit")
    last, canvas = page.locator(".node.output").last.bounding_box(), page.locator("#canvas").bounding_box()
    assert canvas["y"] <= last["y"] and last["y"] + last["height"] <= canvas["y"] + canvas["height"]


def test_the_overview_leads_anywhere(opened):
    page = opened("one.html")
    strip = page.locator(".overview")
    strip.click(position={"x": 5, "y": strip.bounding_box()["height"] - 2})
    last, canvas = page.locator(".node.output").last.bounding_box(), page.locator("#canvas").bounding_box()
    assert canvas["y"] <= last["y"] < canvas["y"] + canvas["height"]
    page.click("#fit")
    assert not page.locator(".overview").is_visible()


def test_the_table_is_sorted_by_its_header(opened):
    page = opened("two.html")
    page.locator("#layers th", has_text="time").first.get_by_role("button").click()
    numbers = page.evaluate(
        "[...document.querySelectorAll('#layers tr[data-row]')].map((row) => variant().layers[row.dataset.row].seconds)"
    )
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 1


def test_another_model_is_chosen(opened):
    page = opened("two.html")
    assert page.locator("#comparison tbody tr").count() >= 5 and "What is float" in page.locator("#layers").inner_text()
    kernels = page.locator("#layers tr[data-row]").count()
    page.locator("#comparison th").get_by_role("button", name="b").click()
    assert page.locator("#layers tr[data-row]").count() != kernels
    assert not page.locator("#before").is_disabled()


def test_a_graph_of_thousands_of_boxes_is_laid_out(opened):
    """In a second or so, not in the minutes that it takes in one piece."""
    page = opened("one.html")
    milliseconds = page.evaluate(
        """() => {
            const nodes = [...Array(3000).keys()].map((id) => ({ id, kind: "integer" }));
            const edges = nodes.slice(1).map((node) => ({ from: node.id - 1, to: node.id }));
            for (let id = 6; id < 3000; id += 7) edges.push({ from: id - 4, to: id });
            const start = performance.now();
            const found = layout({ nodes, edges }, () => ({ width: 100, height: 40 }));
            if (found.places.size !== 3000 || found.routes.size !== edges.length) throw new Error("incomplete");
            return performance.now() - start;
        }"""
    )
    assert milliseconds < 20_000

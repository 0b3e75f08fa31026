"""README and the pages of docs/ tell the truth: commands and snippets run, links exist; the site builds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import qnn_ext
from scripts import operators
from scripts.site.tutorials import scripts

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")


def blocks(language: str) -> list:
    """The blocks of code in `language`, each with its page and number as the name of the test."""
    return [
        pytest.param(block, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        )
    ]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder that looks like the repository root, so that what README writes does not land in the repository."""
    for name in ("qnn_ext", "tutorials"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def run(checkout, environment):
    """Run a command in the checkout; it must succeed."""

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.exhaustive("tests/cli, which runs each of these commands")
@pytest.mark.parametrize("script", blocks("sh"))
def test_commands(script, run, links_for):
    if "--target rpi4" in script:
        links_for("aarch64")
    run("bash", "-euo", "pipefail", "-c", script)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("script", blocks("python"))
def test_snippets(script, run):
    run(sys.executable, "-c", script)


def test_site(tmp_path, environment):
    """The site builds without a warning; tutorials are shown without their output, test_tutorials.py executes them."""
    pytest.importorskip("furo", reason="needs the documentation's tools: pip install 'qnn-ext[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.site", tmp_path],
        cwd=ROOT,
        env={**environment, "QNN_EXT_DOCS_EXECUTE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(tmp_path).with_suffix("") for path in tmp_path.rglob("*.html")}
    wanted = [
        *(path.relative_to(ROOT / "docs") for path in PAGES[1:]),
        *(Path("tutorials") / name.stem for name in scripts()),
    ]
    assert pages.issuperset(path.with_suffix("") for path in wanted)
    assert len(pages) > len(wanted)  # the reference
    outside = [
        (page, link)
        for page in tmp_path.rglob("*.html")
        for link in re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=.(https?:[^\"' >]+)", page.read_text(encoding="utf-8")
        )
    ]
    assert not outside, "a page loads nothing from the network"


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^make ([\w-]+) |`make ([\w-]+)`", README, re.MULTILINE)):
        name = "".join(target)
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"make {name}"


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "SECURITY.md"])
def test_links(document):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text(encoding="utf-8")):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_architecture_names_what_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    assert len(rooms) > 10
    for room in rooms:
        assert (ROOT / "qnn_ext" / room).exists(), room


def test_operator_list():
    assert operators.OPERATORS.read_text(encoding="utf-8") == operators.document(), "run python -m scripts.operators"


def test_error_table():
    table = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+Error)` \|", table, re.MULTILINE)
    classes = {name for name in vars(qnn_ext) if name.endswith("Error")} - {"QnnError"}
    assert set(listed) == classes


def test_version():
    """The newest entry of the changelog and the citation are of this version."""
    changelog, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    assert re.findall(r"^## (\S+)$", changelog, re.MULTILINE)[0] == qnn_ext.__version__
    assert f"\nversion: {qnn_ext.__version__}\n" in citation

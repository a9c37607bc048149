"""The documentation site: it builds without a warning, needs no network, and its reference has every public name."""

import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("samplers", "ising_attn", "models")
REASON = "the site is built by mkdocs (extra docs)"


def _hook(name: str) -> ModuleType:
    for package in ("mkdocs", "griffe"):
        pytest.importorskip(package, reason=REASON)
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _public_names() -> list[str]:
    """Every name in an `__all__`, as it is imported."""
    found = []
    for root in PACKAGES:
        package = importlib.import_module(root)
        inner = [part.name for part in pkgutil.walk_packages(package.__path__, f"{root}.") if part.ispkg]
        for name in (root, *inner):
            found += [f"{name}.{public}" for public in getattr(importlib.import_module(name), "__all__", ())]
    return found


def test_there_are_public_names():
    names = _public_names()
    assert {"samplers.IsingProblem", "ising_attn.IsingProblem", "samplers.dqa.DQASampler"} <= set(names)
    assert {"ising_attn.masks.Task", "ising_attn.logic.GATES", "models.TaskLM"} <= set(names)


def test_every_public_name_has_one_place_in_the_reference():
    reference = _hook("reference")
    documented = [f"{path}.{name}" for path in reference.modules() for name in reference.members_of(path)[0]]
    assert len(documented) == len(set(documented))
    for name in _public_names():
        package, _, last = name.rpartition(".")
        home = reference.homes()[reference.modules()[package].members[last].canonical_path]
        assert home in documented, name
        # … and the page of its package names it.
        assert home == name or home in reference.members_of(package)[1], name


def test_inner_packages_document_what_outer_ones_only_pass_on():
    reference = _hook("reference")
    homes = reference.homes()
    assert homes["samplers.problem.IsingProblem"] == "samplers.IsingProblem"
    assert homes["ising_attn.routers.ising.RouterAttention"] == "ising_attn.routers.RouterAttention"
    assert "IsingProblem" not in reference.members_of("samplers.problem")[0]
    assert "GroupedProblem" in reference.members_of("samplers.problem")[0]


def test_docstrings_are_not_misread_as_markdown():
    readable = _hook("docstrings").readable
    assert readable("Shapes (*batch, n) and (*batch,).") == r"Shapes (\*batch, n) and (\*batch,)."
    assert readable("Write _sample; curves[a][b].") == r"Write \_sample; curves[a]\[b]."
    assert readable("h_ij, `*batch` and 2 * 3") == "h_ij, `*batch` and 2 * 3"
    assert readable("A law:\n\n    p = *x[0][1]\n") == "A law:\n\n    p = *x[0][1]\n"
    assert readable("Args:\n    x: (*batch, n).") == "Args:\n    x: (\\*batch, n)."
    assert readable("Text.\n\nExample:\n    f(*x)") == "Text.\n\nExample:\n\n    f(*x)"


class _Files(dict):
    get_file_from_path = dict.get


class _Page:
    def __init__(self, path: str):
        self.file, self.meta = type("File", (), {"src_uri": path}), {}  # type: ignore[var-annotated]


def test_links_of_the_repository_become_links_of_the_site():
    pages = _hook("pages")
    known = _Files.fromkeys(
        ["index.md", "masks.md", "results/index.md", "results/brackets/table.md", "api/samplers/problem.md"], True
    )

    def moved(text: str, page: str) -> str:
        return pages.on_page_markdown(text, _Page(page), known)

    assert (
        moved("[m](docs/masks.md#use) [r](results/README.md)", "index.md") == "[m](masks.md#use) [r](results/index.md)"
    )
    assert moved("![t](../results/brackets/table.md)", "masks.md") == "![t](results/brackets/table.md)"
    assert moved("[m](../docs/masks.md)", "results/index.md") == "[m](../masks.md)"
    assert moved("[home](../README.md)", "masks.md") == "[home](index.md)"
    assert moved("[sign](../samplers/problem.py)", "masks.md") == "[sign](api/samplers/problem.md)"
    assert moved("[the file](../Makefile)", "masks.md") == "the file"
    # What leads nowhere stays as it is, for the build to complain about.
    assert moved("[x](../no-such-file.md) [y](https://example.org/a.md)", "masks.md") == (
        "[x](../no-such-file.md) [y](https://example.org/a.md)"
    )


def _inventory(path: Path) -> set[str]:
    """The names in an inventory in Sphinx's format: four lines, then, compressed, lines that begin with a name."""
    *head, rest = path.read_bytes().split(b"\n", 4)
    assert head[0] == b"# Sphinx inventory version 2"
    return {line.split(" ", 1)[0] for line in zlib.decompress(rest).decode().splitlines()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning fails the build."""
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocs_jupyter"):
        pytest.importorskip(package, reason=REASON)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return target


@pytest.mark.slow
def test_every_public_name_is_in_the_inventory(site: Path):
    known = _inventory(site / "objects.inv")
    assert [name for name in _public_names() if name not in known] == []
    assert "samplers.problem.GroupedProblem" in known and "samplers.no_such_name" not in known


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path):
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*\shref=\"(?:https?:)?//[^>]*stylesheet"
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    assert [page.name for page in pages if loaded.search(page.read_text("utf-8"))] == []


@pytest.mark.slow
def test_links_and_pictures_lead_to_files(site: Path):
    pages = [site / name for name in ("index.html", "masks.html", "results/index.html", "contributing.html")]
    pages += sorted((site / "tutorials").glob("*.html"))
    for page in pages:
        targets = re.findall(r"(?:href|src)=\"(?!https?:|data:|mailto:|#)([^\"#?]+)", page.read_text("utf-8"))
        assert targets
        assert [t for t in targets if not (page.parent / t).exists()] == [], page.name
        assert [t for t in targets if t.endswith((".md", ".ipynb"))] == [], page.name


@pytest.mark.slow
def test_docstrings_have_no_emphasis_by_accident(site: Path):
    pages = sorted((site / "api").rglob("*.html"))
    assert [page.name for page in pages if "<em>" in page.read_text("utf-8")] == []

"""Pages of the site that live outside docs/: README, CONTRIBUTING, CHANGELOG and results/, with their links kept.

Links in these files and in docs/*.md are those that work on a forge: relative paths in the repository. On the site each
becomes the link to the page that shows the same file.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent.parent
TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
RESULT_KINDS = (".md", ".png", ".csv", ".json")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_TO_SOURCE = re.compile(r'href="(?!https?:)([^"#]+)\.(?:md|ipynb)(?=["#])')
_REMOTE = re.compile(r"<script[^>]*?(?:src=\"https?://[^>]*></script>|>\s*import\(\"https?://.*?</script>)", re.S)


def repository_files() -> dict[str, str]:
    """The files outside docs/ that the site has: {path in the repository: path on the site}."""
    found = dict(TOP_PAGES)
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in RESULT_KINDS:
            name = path.relative_to(ROOT).as_posix()
            found[name] = "results/index.md" if name == "results/README.md" else name
    return found


def on_config(config: Any, **_: Any) -> Any:
    """Put the tables of results in the navigation, and the guides that it does not name."""
    tables = [{path.parent.name: f"results/{path.parent.name}/table.md"} for path in ROOT.glob("results/*/table.md")]
    named = str(config.nav)
    guides = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if repr(path.name) not in named]
    for entry in config.nav:
        entry.get("Results", []).extend(sorted(tables, key=str))
        entry.get("Guides", []).extend(guides)
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the files from outside docs/."""
    for source, target in repository_files().items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point links to the pages of the site, and those to sources to the reference. Other files get no link."""
    here = page.file.src_uri
    if here in TOP_PAGES.values():
        page.meta["hide"] = ["navigation"]
    places = repository_files()
    source = {target: name for name, target in places.items()}.get(here, f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        module = path.removesuffix(".py").removesuffix("/__init__")
        candidates = places.get(path, path.removeprefix("docs/")), f"api/{module}.md", f"api/{module}/index.md"
        for found in candidates:
            if files.get_file_from_path(found) is not None:
                return f"{image}[{text}]({posixpath.relpath(found, posixpath.dirname(here) or '.')}{anchor or ''})"
        return text if (ROOT / path).exists() else match.group()

    return _LINK.sub(moved, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Notebooks without the scripts that they load from elsewhere (formulas are plain text), and links to pages."""
    if not page.file.src_uri.endswith(".ipynb"):
        return output
    return _TO_SOURCE.sub(r'href="\1.html', _REMOTE.sub("", output))

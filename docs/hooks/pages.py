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
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
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
    """Put the tables of results in the navigation."""
    tables = [{path.parent.name: f"results/{path.parent.name}/table.md"} for path in ROOT.glob("results/*/table.md")]
    for entry in config.nav:
        if "Results" in entry:
            entry["Results"] += sorted(tables, key=str)
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the files from outside docs/."""
    for source, target in repository_files().items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point links to the pages of the site."""
    here = page.file.src_uri
    if here in TOP_PAGES.values():
        page.meta["hide"] = ["navigation"]
    places = repository_files()
    source = {target: name for name, target in places.items()}.get(here, f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        on_site = places.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            return match.group()
        return f"{before}{posixpath.relpath(on_site, posixpath.dirname(here) or '.')}{anchor or ''}{after}"

    return _LINK.sub(moved, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Without the scripts that notebooks load from elsewhere: formulas here are plain text."""
    return _REMOTE.sub("", output)

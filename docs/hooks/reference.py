"""The API reference: a page per package, with its public names, and one per module, with what else it holds.

A name is documented once, on the page of the innermost package that lists it in `__all__`, under the path that users
import it from. Everything is read from the sources; nothing is imported.
"""

import posixpath
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("samplers", "ising_attn", "models")
FOLDER = "api"
SECTION = "API reference"
_INTRODUCTION = """# API reference

Names on the page of a package are its public interface, under the path to import them from. The pages of modules hold
the parts that these are made of; they are documented as well, but may change.

| package | what |
|---|---|
"""


@cache
def modules() -> dict[str, griffe.Module]:
    """Every module by its dotted name, packages before what they hold."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    roots = [loader.load(name) for name in PACKAGES]
    loader.resolve_aliases(implicit=False, external=False)
    found: dict[str, griffe.Module] = {}

    def visit(module: griffe.Module) -> None:
        found[module.path] = module
        inner = [part for part in module.members.values() if isinstance(part, griffe.Module)]
        for part in sorted(inner, key=lambda m: (not m.modules, m.path)):
            if part.name != "__main__":
                visit(part)

    for root in roots:
        if isinstance(root, griffe.Module):
            visit(root)
    return found


def exported(module: griffe.Module) -> list[str]:
    """The names in `__all__`."""
    return [str(name) for name in module.exports or ()]


@cache
def homes() -> dict[str, str]:
    """Where each exported object is documented: {path of its definition: public path}."""
    found: dict[str, str] = {}
    for path, module in modules().items():
        for name in exported(module):
            target = module.members[name]
            definition = target.canonical_path
            if not definition.startswith(f"{path}."):
                continue
            # Inner packages come later, and take over.
            found[definition] = f"{path}.{name}"
    return found


def members_of(path: str) -> tuple[list[str], list[str]]:
    """What the page of a module documents, and the public paths of what it defines or exports but others document."""
    module = modules()[path]
    own, elsewhere = [], []
    for name, member in module.members.items():
        hidden = module.exports is not None or member.is_alias or member.is_module or name.startswith("_")
        if hidden and name not in exported(module):
            continue
        home = homes().get(member.canonical_path, f"{path}.{name}")
        if home == f"{path}.{name}":
            own.append(name)
        else:
            elsewhere.append(home)
    return own, elsewhere


def page_of(path: str) -> str:
    """Where the page of a module is."""
    inside = path.replace(".", "/")
    return f"{FOLDER}/{inside}/index.md" if children(path) else f"{FOLDER}/{inside}.md"


@cache
def children(path: str) -> tuple[str, ...]:
    """The modules of a package that have a page."""
    inner = [name for name in modules() if name.rpartition(".")[0] == path]
    return tuple(name for name in inner if children(name) or members_of(name)[0])


def summary(path: str) -> str:
    """The first sentence of a module's docstring, fit for a table."""
    docstring = modules()[path].docstring
    first = docstring.value.split("\n\n")[0].replace("\n", " ") if docstring else ""
    return first.replace("|", r"\|").replace("*", r"\*")


def content(path: str) -> str:
    """Markdown of the page of a module."""
    own, elsewhere = members_of(path)
    # The public interface comes first in a search.
    boost = ["search:", "  boost: 2"] if exported(modules()[path]) else []
    lines = ["---", f"title: {path}", *boost, "---", f"::: {path}"]
    lines += ["    options:", f"      members: {own}", "      members_order: [__all__, source]", ""]
    by_package: dict[str, list[str]] = {}
    for home in elsewhere:
        by_package.setdefault(home.rpartition(".")[0], []).append(home)
    for package, names in by_package.items():
        links = ", ".join(f"[`{name.rpartition('.')[2]}`][{name}]" for name in sorted(names))
        lines += [f"Documented in [`{package}`][{package}]: {links}.", ""]
    if children(path):
        lines += ["## Modules", "", "| module | what |", "|---|---|"]
        lines += [f"| [`{name}`][{name}] | {summary(name)} |" for name in children(path)]
    return "\n".join(lines) + "\n"


def navigation(path: str) -> dict[str, Any]:
    """The entry of a module in the navigation, with what it holds."""
    title = path.rpartition(".")[2]
    if not children(path):
        return {title: page_of(path)}
    return {title: [page_of(path), *(navigation(name) for name in children(path))]}


def on_config(config: Any, **_: Any) -> Any:
    """Put the reference where the navigation has its section."""
    entries = [posixpath.join(FOLDER, "index.md"), *(navigation(name) for name in PACKAGES)]
    config.nav = [{SECTION: entries} if SECTION in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages."""
    overview = _INTRODUCTION + "".join(f"| [`{name}`][{name}] | {summary(name)} |\n" for name in PACKAGES)
    files.append(File.generated(config, posixpath.join(FOLDER, "index.md"), content=overview))
    for root in PACKAGES:
        for path in modules():
            if path == root or (path.startswith(f"{root}.") and (children(path) or members_of(path)[0])):
                files.append(File.generated(config, page_of(path), content=content(path)))
    return files

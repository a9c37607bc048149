"""Every Python block of README and docs runs, and the files they point to exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)
]


def test_there_are_blocks_to_run():
    assert {page.name for page, _ in BLOCKS} >= {"README.md", "architecture.md"}


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page.name}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_block_runs(page: Path, block: str):
    exec(compile(block, str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} points to {target}, which does not exist"

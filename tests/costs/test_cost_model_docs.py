"""The Python in docs/cost-model.md runs, and gives the values that its comments promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "cost-model.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"snippet {number}" for number in range(1, len(BLOCKS) + 1)])
def test_the_snippet_gives_what_it_says(block: str) -> None:
    names: dict[str, Any] = {}
    promised = 0
    for line in block.splitlines():
        code, _, comment = line.partition("  # ")
        if not comment:
            exec(line, names)
            continue
        expected, value = comment.split(";")[0].strip(), eval(code.strip(), names)
        assert value == (pytest.approx(float(expected), rel=0.01) if expected[0].isdigit() else expected)
        promised += 1
    assert promised > 0


def test_there_are_snippets() -> None:
    assert len(BLOCKS) == 2

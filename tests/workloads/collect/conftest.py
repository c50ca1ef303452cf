"""A small collection of documents and the embedding model, which is loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.workloads.collect.embedding import MiniLM

TOPICS = {
    "animals/cat.md": "Cats purr.\n\nA cat is a small animal that likes to sleep on a sofa and to hunt mice.",
    "animals/dog.txt": "A dog is a loyal animal that likes to be taken for a walk by its owner.",
    "astronomy.html": "<html><body><article><p>Planets revolve around the sun.</p></article></body></html>",
    "cooking.rst": "Soup\n====\n\nBoil vegetables with salt.\n\nBread is baked of flour, water and yeast.",
    "money.py": '"""Interest."""\n\n\ndef interest(capital, rate):\n    return capital * rate  # of savings',
}


@pytest.fixture(scope="session")
def model() -> MiniLM:
    return MiniLM()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of every kind that is read, and a file that is not."""
    folder = tmp_path / "documents"
    for name, text in TOPICS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder

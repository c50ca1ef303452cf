"""A vector index over a folder of documents, kept in a folder of its own; an interrupted build goes on where it was."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stream2llm.workloads.collect import CollectError
from stream2llm.workloads.collect.documents import Passage, documents, fingerprint, passages_of
from stream2llm.workloads.lines import Format, FormatError, read_lines, writing

if TYPE_CHECKING:
    from stream2llm.workloads.collect.embedding import Embedding, Vectors

FORMAT = Format("stream2llm-passages", 1)
PASSAGES, VECTORS, INDEX = "passages.jsonl", "vectors.f32", "index.faiss"
BATCH = 32  # texts embedded at a time; what a killed build loses at most

Progress = Callable[[str, int, int], None]  # what, done, of


class IndexFolderError(CollectError):
    """The folder is somebody else's; the message names the remedy."""


class _Header(msgspec.Struct, frozen=True):
    fingerprint: str


class VectorIndex:
    """An inverted file of exact vectors (Faiss IVF), read from disk as it is searched; similarity is the cosine."""

    def __init__(self, passages: tuple[Passage, ...], index: Any) -> None:
        self.passages = passages
        self._index = index

    def widening(self, vector: Vectors, top_k: int) -> Iterator[tuple[int, ...]]:
        """The `top_k` nearest passages (numbers, best first) in 1, 2, 4, ... cells around the vector, at last in all.

        Each step looks only into the cells that are new to it.
        """
        similarities, cells = self._index.quantizer.search(vector, self._index.nlist)
        pool: list[tuple[float, int]] = []
        for begin, end in rings(len(cells[0])):
            self._index.nprobe = end - begin
            ring = cells[:, begin:end], similarities[:, begin:end]
            scores, numbers = self._index.search_preassigned(vector, top_k, *ring)
            found = ((-float(score), int(number)) for score, number in zip(scores[0], numbers[0], strict=True))
            pool = sorted([*pool, *((score, number) for score, number in found if number >= 0)])[:top_k]
            yield tuple(number for _, number in pool)


def rings(cells: int) -> Iterator[tuple[int, int]]:
    """Ranges of cells, nearest first, so that 1, 2, 4, ... and at last all are covered."""
    begin, end = 0, 1
    while begin < cells:
        yield begin, min(end, cells)
        begin, end = end, end * 2


def built_index(
    folder: Path, directory: Path, embedding: Callable[[], Embedding], name: str, characters: int, progress: Progress
) -> VectorIndex:
    """The index in `directory` over the documents in `folder`; what is not there yet is made, and kept.

    `embedding`: loads the model called `name`, asked for only when there is something to embed. `characters`: of a
    passage at most. If documents or settings changed, all is made anew. Raises `DocumentsError`, `IndexFolderError`
    and `OSError`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ours = {name for made in (PASSAGES, VECTORS, INDEX) for name in (made, f".{made}")}
    if any(path.name not in ours for path in directory.iterdir()):
        raise IndexFolderError(f"{directory} holds something else than an index; name another folder for the index")
    passages = _passages(folder, directory, name, characters, progress)
    path = directory / INDEX
    if not path.exists():
        _write_index(path, _vectors(directory / VECTORS, passages, embedding, progress))
    return VectorIndex(passages, _read_index(path))


def _passages(folder: Path, directory: Path, name: str, characters: int, progress: Progress) -> tuple[Passage, ...]:
    files = documents(folder)
    mark = fingerprint(folder, files, name, characters)
    path = directory / PASSAGES
    if path.exists():
        try:
            header, passages = read_lines(path, FORMAT, _Header, Passage)
            if header.fingerprint == mark:
                return tuple(passages)
        except FormatError as error:
            raise IndexFolderError(f"{error}; name another folder for the index") from error
    # What was made of other passages goes first: should we be ended here, the next run comes here again.
    for made in (VECTORS, INDEX):
        (directory / made).unlink(missing_ok=True)
    scratch = directory / f".{PASSAGES}"
    cut: list[Passage] = []
    with writing(scratch, FORMAT, _Header(mark)) as lines:
        for number, file in enumerate(files, 1):
            some = list(passages_of(folder, file, characters))
            lines.write_all(some)
            cut += some
            progress("documents read", number, len(files))
    os.replace(scratch, path)
    return tuple(cut)


def _vectors(path: Path, passages: tuple[Passage, ...], embedding: Callable[[], Embedding], progress: Progress) -> Any:
    """A row for each passage; those that an earlier run wrote are kept."""
    import numpy as np

    model = embedding()
    row = model.dimensions * np.dtype(np.float32).itemsize
    with path.open("ab") as file:
        done = file.tell() // row
        file.truncate(done * row)
        for begin in range(done, len(passages), BATCH):
            batch = passages[begin : begin + BATCH]
            file.write(model([passage.text for passage in batch]).tobytes())
            file.flush()
            progress("passages embedded", begin + len(batch), len(passages))
    return np.fromfile(path, dtype=np.float32).reshape(-1, model.dimensions)


def _write_index(path: Path, vectors: Any) -> None:
    import faiss

    count, dimensions = vectors.shape
    cells = max(1, min(count, round(4 * math.sqrt(count))))  # as Faiss's guidelines have it
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimensions), dimensions, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # no warning about small collections
    index.train(vectors)
    index.add(vectors)
    scratch = path.with_name(f".{path.name}")
    faiss.write_index(index, str(scratch))
    os.replace(scratch, path)


def _read_index(path: Path) -> Any:
    import faiss

    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP)

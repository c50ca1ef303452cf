"""Policies by name, those of other packages included."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.policy import DEFAULT_POLICY, PolicyError, names, policy

THIRD_PARTY = """
class Youngest:
    name = "youngest"
    description = "last come, first served"
    complete_first = False
    preempts_running = False
    short_steps = False
    def service(self, job): return (job.idle, -job.arrival)
    def giving(self, job): return (not job.idle, job.arrival)
class Half:
    name = "half"
    def service(self, job): return (0,)
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution, as far as the import system can tell: code and metadata on the path."""
    (tmp_path / "youngest_policy.py").write_text(THIRD_PARTY)
    metadata = tmp_path / "youngest_policy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: youngest-policy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[stream2llm.policies]\nyoungest = youngest_policy:Youngest\nhalf = youngest_policy:Half\n"
        "gone = youngest_policy:Gone\nfcfs = youngest_policy:Youngest\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_ours_is_the_default_and_the_papers_are_there() -> None:
    assert names()[0] == DEFAULT_POLICY == "srpf"
    assert {"default", "fcfs", "lcas", "mcps"} <= set(names())
    assert all(policy(name).name == name for name in names())


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(PolicyError, match="no policy 'sjf': choose one of srpf, default, fcfs, lcas, mcps"):
        policy("sjf")


@pytest.mark.usefixtures("third_party")
def test_another_package_may_bring_a_policy() -> None:
    assert "youngest" in names()
    assert policy("youngest").description == "last come, first served"


@pytest.mark.usefixtures("third_party")
def test_a_built_in_name_cannot_be_taken() -> None:
    assert type(policy("fcfs")).__module__ == "stream2llm.policy.fcfs"


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(("name", "message"), [("half", "lacks complete_first"), ("gone", "cannot be loaded")])
def test_one_that_is_no_policy_is_refused_with_what_it_lacks(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(name)

"""Profiles are found again by what they are profiles of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costs_profiles import SUBJECT, profile
from stream2llm.costs import ProfileError, ProfileMismatchError
from stream2llm.costs.store import find, load, profile_path, save


def test_a_saved_profile_is_found_by_its_subject(tmp_path: Path) -> None:
    directory = tmp_path / "profiles"
    assert find(SUBJECT, directory) is None
    save(profile(), profile_path(SUBJECT, directory))
    assert find(SUBJECT, directory) == profile()
    assert find(replace(SUBJECT, engine="vllm 0.33.0"), directory) is None
    assert [file.name for file in directory.iterdir()] == [profile_path(SUBJECT, directory).name]


def test_the_name_is_readable_and_differs_with_every_part(tmp_path: Path) -> None:
    path = profile_path(SUBJECT, tmp_path)
    assert path.name.startswith("1-x-test-gpu--org-model--")
    others = [replace(SUBJECT, **{name: value}) for name, value in (("dtype", "float16"), ("block_size", 32))]
    assert len({path, *(profile_path(other, tmp_path) for other in others)}) == 3


def test_saving_again_replaces(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(profile(), path)
    newer = replace(profile(), step_tokens=4096)
    save(newer, path)
    assert load(path) == newer


def test_a_profile_of_something_else_is_refused_unless_forced(tmp_path: Path) -> None:
    """BUGS 19."""
    path = tmp_path / "profile.json"
    save(profile(), path)
    other = replace(SUBJECT, hardware="other")
    with pytest.raises(ProfileMismatchError, match=r"profile\.json: .*hardware"):
        load(path, other)
    assert load(path, other, force=True) == profile()


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ProfileError, match=r"profile\.json cannot be read"):
        load(path)
    path.write_text("{}")
    with pytest.raises(ProfileError, match=r"profile\.json: format: missing"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match=r"profile\.json cannot be read"):
        load(path)

"""Profiles on disk: written by `stream2llm profile`, found by the server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from stream2llm.costs.document import from_json, to_json
from stream2llm.costs.profile import CostProfile, ProfileError, Subject


def profile_path(subject: Subject, directory: Path) -> Path:
    """Where the profile of `subject` lies in `directory`: a readable name, made unique by a hash of the subject."""
    readable = "--".join(re.sub(r"[^a-z0-9.]+", "-", text.lower()) for text in (subject.hardware, subject.model))
    digest = hashlib.sha256(json.dumps(asdict(subject), sort_keys=True).encode()).hexdigest()[:12]
    return directory / f"{readable[:120]}--{digest}.json"


def save(profile: CostProfile, path: Path) -> None:
    """Write the profile; a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(to_json(profile) + "\n")
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def load(path: Path, subject: Subject | None = None, force: bool = False) -> CostProfile:
    """Read a profile and, where `subject` is given, require it to be of that.

    Raises `ProfileError` for a file that is missing or no profile, `ProfileMismatchError` for one of another subject
    unless `force` is set. The message names the file.
    """
    try:
        profile = from_json(path.read_text(encoding="utf-8"))
        return profile if subject is None else profile.require(subject, force)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"the cost profile {path} cannot be read: {error}") from error
    except ProfileError as error:
        raise type(error)(f"{path}: {error}") from error


def find(subject: Subject, directory: Path) -> CostProfile | None:
    """The measured profile of `subject` in `directory`; None if there is none. Raises `ProfileError` as `load` does."""
    path = profile_path(subject, directory)
    return load(path, subject) if path.exists() else None

"""The servers that benchmarks measure: those of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import serving
from tiny_model import tiny_model

__all__ = ["serving", "tiny_model"]

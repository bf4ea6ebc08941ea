"""The types that ``py.typed`` promises: a type checker reads a user's file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typed_user

FILE = Path(__file__).resolve().parent / "typed_user.py"


@pytest.mark.slow
def test_a_type_checker_finds_what_is_wrong_and_no_more(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install '.[dev]'")
    process = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent",
                              "--cache-dir", tmp_path, FILE], cwd=FILE.parent.parent,
                          text=True, capture_output=True)
    lines_with_errors = {int(n) for n in re.findall(r"typed_user\.py:(\d+): error", process.stdout)}
    lines = FILE.read_text(encoding="utf-8").splitlines()
    expected = {n for n, line in enumerate(lines, 1) if line.endswith("# error")}
    assert lines_with_errors == expected, process


def test_the_same_file_runs():
    """What a type checker finds right is right."""
    typed_user.main()

"""Our reading of .gitignore is git's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gfxgraph.port.gitignore import GitIgnore

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NAMES = ["a", "b", "ab", "build", "a.py", "x.o", "a b", "#c", "!d", "k[1]", "-e", "k1"]
PATHS = [
    *NAMES, *(f"{x}/{y}" for x in ("a", "build", "ab") for y in NAMES),
    "a/b/a.py", "a/build/x.o", "build/a/b/a.py", "a/b/build/k1",
]  # fmt: skip
PIECES = [
    *NAMES,
    "*",
    "*a*b",
    "a*b*",
    "*.*",
    "**",
    "*.py",
    "?",
    "[ab]",
    "[!a]",
    "[a-k]*",
    "\\#c",
    "\\!d",
    "k\\[1]",
    "b*",
    "a\\ b",
    "[[:alpha:]]",
]
pattern = st.builds(
    lambda bang, lead, parts, tail: bang + lead + "/".join(parts) + tail,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/**", " ", "  "]),
)


def by_git(root: Path, text: str) -> set[str]:
    """Paths that git ignores, without what an ignored folder above hides."""
    (root / ".gitignore").write_text(text)
    command = ["git", "-C", str(root), "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
    done = subprocess.run(command, input="\0".join(PATHS).encode(), capture_output=True, check=False)
    fields = done.stdout.decode().split("\0")
    rows = [fields[i : i + 4] for i in range(0, len(fields) - 3, 4)]
    return {path for _source, _line, matched, path in rows if matched and not matched.startswith("!")}


def by_us(text: str) -> set[str]:
    rules = GitIgnore(text)
    found = set()
    for path in PATHS:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            if rules.decides("/".join(parts[:end]), end < len(parts)):
                found.add(path)
                break
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ignored")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@example(["**/**/a"])
@example(["a/**/**"])
@example(["**/**"])
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pattern, min_size=1, max_size=4))
def test_same_as_git(repository: Path, lines: list[str]) -> None:
    """For any patterns, exactly the paths that git ignores are ignored."""
    text = "\n".join(lines) + "\n"
    assert by_us(text) == by_git(repository, text), text

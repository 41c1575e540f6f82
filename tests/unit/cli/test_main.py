"""The ``gfxgraph`` command itself."""

from __future__ import annotations

import os
import subprocess
import sys

from gfxgraph.cli import _chinese
from gfxgraph.cli.main import Commands, summary

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}


def gfxgraph(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gfxgraph", *args],
        env=ENVIRONMENT | env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_lists_every_command_with_its_summary():
    """A file dropped into cli/ appears in the help, described by its docstring's first line."""
    done = gfxgraph("--help")
    assert done.returncode == 0
    commands = Commands("gfxgraph").list_commands(None)  # type: ignore[arg-type]
    assert {"run", "demo", "check"} <= set(commands)
    for name in commands:
        assert f"\n  {name}" in done.stdout
        assert summary(name)
        assert summary(name).split()[0] in done.stdout


def test_help_imports_nothing_heavy():
    """Neither torch nor the commands are imported to print the help."""
    code = (
        "import sys\nfrom gfxgraph.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'rich', 'numpy', 'subprocess', 'gfxgraph.cli.run', 'gfxgraph.startup.activation'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert "heavy: []" in done.stdout, done.stderr


def test_help_is_fast(start):
    """Under 150 ms of processor time, the interpreter's own start included."""
    assert start("--help") < 0.150


def test_unknown_command():
    """Status 2, and the name is shown."""
    done = gfxgraph("fly")
    assert done.returncode == 2
    assert "fly" in done.stderr


def test_version():
    """--version prints the package's version."""
    done = gfxgraph("--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gfxgraph 2")


def test_help_in_chinese_names_every_command():
    """``GFXGRAPH_LANG=zh gfxgraph --help``: what each command does, in Chinese; none is left out."""
    done = gfxgraph("--help", GFXGRAPH_LANG="zh")
    assert done.returncode == 0 and "退出状态" in done.stdout
    assert set(_chinese.SUMMARIES) == set(Commands("gfxgraph").list_commands(None))  # type: ignore[arg-type]
    assert all(text in done.stdout for text in _chinese.SUMMARIES.values())

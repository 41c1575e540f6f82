"""The ``gfxgraph`` command itself."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys

import click

from gfxgraph.cli import _chinese
from gfxgraph.cli.main import Commands, cli, summary

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


def test_without_a_command_it_helps():
    """The help, status 0 and nothing on stderr."""
    done = gfxgraph()
    assert (done.returncode, done.stdout, done.stderr) == (0, gfxgraph("--help").stdout, "")


def test_an_unknown_architecture_is_refused_where_it_is_shown():
    """`device` says what is wrong with GFXGRAPH_ARCH, as `enable` does."""
    done = gfxgraph("device", GFXGRAPH_ARCH="gfx9999x")
    assert done.returncode == 2 and 'GFXGRAPH_ARCH is "gfx9999x"' in done.stderr


def test_an_architecture_that_nobody_knows_is_refused():
    """The known ones are listed; an error is explained all the same."""
    done = gfxgraph("device", GFXGRAPH_ARCH="gfx1999")
    assert done.returncode == 2 and 'GFXGRAPH_ARCH is "gfx1999"' in done.stderr and "gfx1030" in done.stderr
    assert gfxgraph("explain", "hipErrorIllegalAddress", GFXGRAPH_ARCH="gfx1999").returncode == 0


def test_the_simulated_device_is_known_before_torch_is():
    """device_info() under GFXGRAPH_SIMULATE."""
    code = "import gfxgraph, sys; d = gfxgraph.device_info(); print(d.arch, d.source, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT | {"GFXGRAPH_SIMULATE": "hip"}, capture_output=True, text=True
    )
    assert done.stdout == "gfx1030 simulator False\n"


def test_status_shows_python_and_system():
    """What a bug report needs."""
    said = gfxgraph("status").stdout
    rows = dict(line.split(None, 1) for line in said.splitlines() if len(line.split(None, 1)) == 2)
    assert rows["Python"] == platform.python_version() and rows["system"] == platform.platform()


def test_no_color_is_heard():
    """On a terminal, too."""
    line = f"{sys.executable} -m gfxgraph doctor"
    for value, has_colour in (("", True), ("1", False)):
        done = subprocess.run(
            ["script", "-qec", line, "/dev/null"],
            env=ENVIRONMENT | {"NO_COLOR": value},
            capture_output=True,
            text=True,
        )
        assert ("\x1b[3" in done.stdout) is has_colour, done.stdout


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


def test_a_script_alone_is_run(tmp_path):
    """``python -m gfxgraph script.py ARGS`` is ``gfxgraph run script.py ARGS``; options stay ``run``'s."""
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.environ['GFXGRAPH'])\nsys.exit(7)\n")
    done = gfxgraph(str(script), "--epochs", "3", GFXGRAPH_SIMULATE="hip")
    assert (done.returncode, done.stdout) == (7, "['--epochs', '3'] 1\n"), done.stderr


def test_status_and_env_tell_what_is_here(tmp_path):
    """The same text by both names, and as JSON; nothing is judged, so the status is 0."""
    by_name = {name: gfxgraph(name, HSA_OVERRIDE_GFX_VERSION="10.3.0") for name in ("status", "env")}
    assert {done.returncode for done in by_name.values()} == {0}
    assert by_name["status"].stdout == by_name["env"].stdout
    assert "gfxgraph environment report:" in by_name["env"].stdout
    assert "HSA_OVERRIDE_GFX_VERSION 10.3.0" in by_name["env"].stdout
    told = json.loads(gfxgraph("status", "--json").stdout)
    assert list(told) == ["device", "torch", "accelerators", "engines", "python", "system", "variables"]


def test_help_in_chinese_names_every_command():
    """``GFXGRAPH_LANG=zh gfxgraph --help``: what each command does, in Chinese; none is left out."""
    done = gfxgraph("--help", GFXGRAPH_LANG="zh")
    assert done.returncode == 0 and "退出状态" in done.stdout
    summaries = [_chinese.texts()[name]["summary"] for name in Commands("gfxgraph").list_commands(None)]  # type: ignore[arg-type]
    assert all(text in done.stdout.replace("\n" + " " * 11, "") for text in summaries)


def every_command(group, above=""):
    """The commands by their paths, those of groups included."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield above + name, command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{above}{name} ")


def test_every_option_is_explained_in_chinese():
    """No command, no option without its text; no text without its option; no line wider than the terminal."""
    known = {"gfxgraph": cli, **dict(every_command(Commands("gfxgraph")))}
    texts = _chinese.texts()
    used = set()
    for path, command in known.items():
        options = {each.name for each in command.params if isinstance(each, click.Option)}
        used |= options
        assert set(texts[path]) - {"help", "summary"} <= options, path
        told = _chinese.translated(command, path)
        shown = told.get_help(told.context_class(told, info_name=path, terminal_width=80, max_content_width=80))
        assert "显示此帮助并退出" in shown or path == "gfxgraph"
        for line in shown.splitlines():
            assert _chinese.width(line) <= 80, line
            assert not re.match(r"\s*-[^\u4e00-\u9fff]*  +[A-Z][a-z]+ [a-z]+ [a-z]", line), line
    assert set(texts) - {"*"} == set(known) and set(texts["*"]) <= used


def test_chinese_leaves_english_alone():
    """The commands that explain themselves in Chinese are copies."""
    command = Commands("gfxgraph").get_command(click.Context(cli), "explain")
    before = command.get_help(click.Context(command))
    _chinese.translated(command, "explain")
    assert command.get_help(click.Context(command)) == before


def test_ctrl_c_while_the_command_is_imported():
    """130 and no traceback, as later; only Python's own start is not ours."""
    program = (
        "import sys, builtins\nreal = builtins.__import__\n"
        "def stopped(name, *rest, **named):\n"
        "    if name == 'click':\n        raise KeyboardInterrupt\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = stopped\n"
        "from gfxgraph.__main__ import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")

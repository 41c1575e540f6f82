"""One contract for all commands: exit statuses, errors in both languages and as JSON, no traceback, no false green.

Every row is a command line that cannot be followed. Each is run as typed, with ``--json`` and in Chinese.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

import gfxgraph
from gfxgraph.cli import _contract
from gfxgraph.cli.main import cli, main

FILES = {
    "empty.py": "",
    "bad.json": "{",
    "list.json": "[]",
    "binary.pt": "\0\1\2",
    "good.py": "x = 1\n",
    "model.py": "import torch\nnumber = 3\ndef step(x):\n    return x\ndef stop():\n    raise SystemExit(0)\n"
    "async def waits(x):\n    return x\ndef gives(x):\n    yield x\ndef forever(x):\n    return forever(x)\n"
    "class Needs:\n    def __init__(self, x):\n        pass\n",
    "syntax.py": "def f(:\n",
    "raises.py": "raise ValueError('no device')\n",
    "left/gfxgraph-1.json": "[]",
    "left/gfxgraph-2.json": '{"at": "x", "pid": 2}',
    "left/gfxgraph-3.json": "\0",
    "build.py": "def build():\n    raise OSError('no device')\n",
    "folder/a.py": "",
    "deep.json": "[" * 100_000,
    "recorded.json": json.dumps({"platform": "hip", "hip": "7.2.26015", "torch": "2.11.0", "archs": ["gfx942"]}),
}
CUDA = """import torch
x = torch.cuda.get_device_capability() >= (9, 0)
if torch.version.hip:
    y = "gfx1200" or "gfx1201" in arch
"""
ESCAPE = "\x1b[2J\x1b]0;owned\x07"

# What cannot be done, by command; {d} is a folder with FILES, {n} an empty word.
REFUSED = {
    "no_such_name": """
run --preload --simulate=nope -- true
explain hipErorUnknown
explain HSA_STATUS_ERROR_NOPE
explain hsa_status_error_nope
doctor --selftest --simulate=hip-9.9
doctor --selftest --simulate=hip-7.2+nope
check --simulate=hip+ m:f
run --simulate=hip+fault= {d}/good.py
fly
explian
run --simulate=hipp good.py
run --simulate=../hip good.py
run --simulate= good.py
check --simulate=hipp m:f
demo --simulate=cudda
doctor --selftest --simulate=hipp
explain hipErrorNope
explain cudaErrorIllegalAdress
explain gpu_hnag
port audit {d} --rule NOPE
port audit {d} --rule GFX9999
port audit {d} --rule GFX101 --rule NOPE
port audit {d} --rule=
port audit {d} --arch gfx9999
port audit {d} --arch RDNA99
port rule NOPE
port rule capability-gat
port fix {d} --arch nope
port rule 目录
port rule {n}
""",
    "bad_usage": """
explain --list 700
explain --lang=
port audit {d} --arch=
port audit {d} --arch=,
port verify run --golden {d}/binary.pt
port verify run --target {d}/build.py:build
run --simulate --guard-limit= good.py
run --simulate --guard-limit 1e400 good.py
device --index 99999999999999999999.5
--nope
run
run -m
run --
run --on-unsafe=never good.py
run --on-unsafe never good.py
run --guard 9 good.py
run --guard-limit 0 good.py
run --guard-limit soon good.py
run --allow-cuda --simulate good.py
run --nope good.py
check --nope
check a b
check --arg 1
check
report
report a b
run --simulate --guard-limit -1 good.py
run --simulate --guard-limit nan good.py
run --simulate --guard-limit inf good.py
demo --tokens 0
demo --tokens many
demo extra
device --index -1
device --index one
device --nope
device extra
doctor --nope
doctor extra
doctor --out {d}/x.json
doctor --simulate
doctor --only tokens
doctor --selftest --simulate --out {d}
doctor --selftest --simulate --allow-cuda
demo --tokens 99999999999999999999
explain --lang fr 700
explain --nope
port
port fly
port audit {d} --severity deadly
port audit {d} --jobs 0
port audit {d} --jobs -2
port audit {d} --limit -1
port audit {d} --max-bytes 0
port audit {d} --lang fr
port rules extra
port rule
port verify
port verify record
port verify record {d}/good.py:x --dtype int7
port verify record {d}/good.py:x --seed -1
port verify run --iterations 0
port audit {d} extra
port audit {d} --fly
port rule a b
port rules --lang fr
port rules --fly
port fix {d} --fly
port fix {d} --max 3
port verify fly
port verify run --device nope --fly
device --index 1.5
device --index
demo --tokens -5
demo --tokens 1e3
doctor --why extra
doctor --allow-cuda
doctor --cases nothing
explain --lang
explain {d}/empty.py {d}/nope.log --lang fr
run --validate
run --debug --fly x.py
run -x
-x
--simulate run x.py
""",
    "script_not_found": """
run --sanitizer nope.py
run --simulate -m no.such.module
run nope.py
run {d}/folder
run -- {d}/good.py
run -- {d}
run {d}/nope/nope.py
run -m no_such_module_here
run -m 1x
run -- no-such-command-here
run --simulate {n}
run -- {n}
run --simulate -m {n}
run --simulate {d}/loop
run --simulate {d}/empty.py/x.py
""",
    "file_unusable": """
run --simulate --report {d}/good.py {d}/good.py
explain /proc/self/mem
report {d}/left --out=
port fix {d}/cuda --unsafe --output {d}/nope/x.patch
explain nope/nope
explain {d}/folder/
run --simulate --report= {d}/good.py
run --simulate --report={d}/new/ {d}/good.py
port audit {n}
port audit /dev/null
port audit {d}/loop
port fix {d} --output {d}/folder
port fix {d} --hipify=
port fix {d} --hipify {d}/good.py
port verify record {d}/build.py:build --out {d}/folder
report {d}/left -o {d}/good.py/x.html
run --simulate --report {d}/nope/x.html {d}/good.py
run --simulate --report {d}/folder {d}/good.py
report {d}/left -o {d}/folder
report {d}/left -o {d}/nope/x.html
doctor --selftest --simulate --out {d}/nope/x.json
explain nope.log
explain {d}/nope.txt
explain {d}
port audit {d}/nope
port fix {d}/nope
port verify record {d}/good.py:x --out {d}/nope/g.pt
port verify run --golden {d}/nope.pt --target {d}/build.py:build
port verify run --golden {d}/binary.pt --target {d}/nope.py:build
""",
    "function_unusable": """
check model
check :
check :step
check model:
check {d}/nope.py:step
check {d}/folder:step
check {d}/binary.pt:step
check {d}/syntax.py:f
check {d}/raises.py:f
check {d}/model.py:nope
check {d}/model.py:number
check {d}/model.py:Needs
check {d}/model.py:stop
check {d}/model.py:step
check {d}/model.py:step --arg 1/0
check {d}/model.py:step --arg (
check {d}/model.py:step --arg=
check {d}/model.py:step --arg exit(0)
check {d}/model.py:step --arg 1 --arg 2
check {d}/model.py:waits --arg 1
check {d}/model.py:gives --arg 1
check {d}/model.py:forever --arg 1
check {d}/model.py:step --arg torch.ones(2)
check {d}/model.py:step:x --arg 1
check naïve:x
check ..:x
check os:nope
check --simulate=cuda {d}/model.py:step.x
""",
    "no_report_data": """
report {d}/nope
report {d}/folder
report {d}/left
report {d}/good.py
report {d}/loop
report {n}
""",
    "port_refused": """
port audit {d} --diff nope
port audit {d}/binary.pt
port audit {d}/left
port audit {d}/cuda --max-bytes 1
port audit {d} --diff=--output=x
port rule GFX
port fix {d} --apply --dry-run
port fix {d} --apply --output x.patch
port fix {d} --dry-run --hipify out
port audit {d} --diff=
port verify record {d}/model.py:step --device cpu --out {d}/new.pt
port verify record {d}/model.py:step --shape 1x-2x3
port verify record {d}/nope.py:build
port verify record {d}/good.py
port verify record {d}/good.py:nope
port verify record {d}/bad.json:build
port verify record {d}/good.py:x --shape axb
port verify record {d}/good.py:x --shape 0x1
port verify run --golden {d}/binary.pt --target {d}/build.py:build
""",
}
ROWS = [(code, line) for code, lines in REFUSED.items() for line in lines.strip().splitlines()]

# Settings that cannot be, for a command that reads them.
BAD_SETTINGS = {
    "GFXGRAPH_GUARD": "9",
    "GFXGRAPH": "perhaps",
    "GFXGRAPH_ON_UNSAFE": "hope",
    "GFXGRAPH_VRAM_CAP": "7",
    "GFXGRAPH_VALIDATE_REPLAYS": "-1",
    "GFXGRAPH_ARCH": "rdna",
    "GFXGRAPH_LANG": "fr",
    "HGB_LOG_LEVEL": "loud",
    "GFXGRAPH_COMPILE": "maybe",
    "GFXGRAPH_REPLAY_MODE": "warm",
    "GFXGRAPH_TRUSTED_REPLAY_SAMPLE_INTERVAL": "0",
}
SHOWN = ["explain {e}", "run {e}", "port audit {e}", "port rule {e}", "{e}", "port audit . --rule {e}",
         "port audit . --arch {e}", "run --simulate={e} x.py", "doctor --{e}"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("inputs")
    for name, text in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    (made / "loop").symlink_to("loop")
    (made / "cuda").mkdir()
    (made / "cuda" / "a.py").write_text(CUDA)
    return made


@pytest.fixture
def call(folder, capfd, monkeypatch):
    """Run a command line in this process; a program that would be started is a mistake of the command."""

    def no_start(*args, **kwargs):
        raise AssertionError(f"was started: {args}")

    for name in ("execve", "execv", "execvp"):
        monkeypatch.setattr(os, name, no_start)
    for name in [name for name in os.environ if name.startswith(("GFXGRAPH", "HGB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("gfxgraph.process.progress.QUIET_S", 1e9)  # on a slow machine everything takes two seconds

    def run(line, *more, **env):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        words = [word.format(d=folder, e=ESCAPE, n="") for word in line.split(" ")]
        at = words.index("--") if "--" in words else len(words)
        if words[0] == "run":
            at = 1
        with pytest.raises(SystemExit) as ended:
            main([*words[:at], *more, *words[at:]])
        gfxgraph.disable()  # check and bench switch it on in their process
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


def wants(line: str) -> bool:
    """Whether the command, as far as the line names one, takes --json."""
    words = line.split()
    groups = (["port"], ["port", "verify"], ["port", "fly"], ["port", "verify", "fly"])
    return words[0] not in ("fly", "explian", "--nope", "-x", "--simulate") and words not in groups


@pytest.mark.parametrize(("code", "line"), ROWS, ids=[line for _, line in ROWS])
def test_what_cannot_be_done_is_refused(call, code, line):
    """Exit status 2 and an error of four parts, as text, as JSON and in Chinese."""
    if "forever" in line:
        gc.collect()  # what other tests left has finalizers, which fail at the limit of recursion and say so
    status, out, err = call(line, GFXGRAPH_LANG="en")
    assert status == 2, (out, err)
    parts = rf"{code}: .+\n  what: .+\n(?s:.*)  why:  (?s:.*)  do:   (?s:.*)  more: gfxgraph explain {code}\n"
    assert re.fullmatch(parts, err), err
    assert out == "" and "Traceback" not in err and "(not known)" not in err
    if wants(line):
        status, out, err = call(line, "--json")
        told = json.loads(out)
        assert (status, told["error"]["code"], err) == (2, code, "")
    status, out, err = call(line, GFXGRAPH_LANG="zh")
    assert status == 2 and re.match(rf"{code}: .*[\u4e00-\u9fff].*\n  现象：", err), err


@pytest.mark.parametrize("variable", BAD_SETTINGS)
def test_a_setting_that_cannot_be_is_refused(call, variable):
    """By the commands that start a program; doctor reports it as a finding."""
    for line in ("check good.py:x", "run --simulate good.py"):
        status, _, err = call(line, **{variable: BAD_SETTINGS[variable]})
        assert status == 2 and err.startswith("bad_setting: ") and variable in err


@pytest.mark.parametrize("line", SHOWN)
def test_control_characters_are_made_visible(call, line):
    """What was typed is shown without steering the terminal."""
    status, out, err = call(line)
    assert status in (1, 2)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err)
    assert "owned" in err or line.startswith("explain")


def test_a_name_that_does_not_exist_gets_near_ones(call):
    """Commands, options, rules, profiles, statuses."""
    for line, near in (
        ("explian", "explain"),
        ("check --simulte", "--simulate"),
        ("port rule capability-gat", "capability-gate"),
        ("check --simulate=hip7.2", "hip-7.2"),
        ("explain cudaErrorIllegalAdress", "cudaErrorIllegalAddress"),
        ("port audit . --arch gfx1039", "gfx1030"),
    ):
        assert near in call(line)[2], line


def test_simulate_takes_its_profile_alike_everywhere():
    """With =, after a blank where it names a profile, or none."""
    for given in (["--simulate"], ["--simulate=hip"], ["--simulate", "hip"]):
        assert _contract.with_profiles([*given, "x.py"]) == ["--simulate=hip", "x.py"]
    assert _contract.with_profiles(["--simulate", "x.py", "--simulate"])[:2] == ["--simulate=hip", "x.py"]
    assert _contract.with_profiles(["--", "--simulate"]) == ["--", "--simulate"]


def test_ctrl_c_is_130(call, monkeypatch):
    """A command that is stopped says nothing more."""
    from gfxgraph.cli import device

    def stopped(index):
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "device_info", stopped)
    status, out, err = call("device")
    assert status == 130 and out == "" and err.strip() == ""


def test_a_bug_of_ours_is_no_finding(call, monkeypatch):
    """Exit status 2, not Python's 1, which would read as a finding; the place is named."""
    from gfxgraph.cli import device

    def broken(index):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(device, "device_info", broken)
    status, _, err = call("device")
    assert status == 2 and err.startswith("internal_error: ") and "device.py:" in err and "of ours" in err
    monkeypatch.setenv("HGB_LOG_LEVEL", "debug")
    with pytest.raises(ZeroDivisionError):
        _contract.run(cli, ["device"])


def test_a_program_keeps_its_own_json_option():
    """Only what stands before the program asks us."""
    assert _contract.wants_json(["run", "--json", "x.py"])
    assert not _contract.wants_json(["run", "--guard", "2", "x.py", "--json"])
    assert not _contract.wants_json(["port", "pip", "--", "--json"])


def test_what_takes_long_says_so(capfd):
    """Past the quiet time a line on stderr, with how far it is where that is known."""
    with _contract.working("reading", quiet_s=0, step_s=0) as progress:
        progress.update(1, 4)
    assert "reading: 1 of 4 files (25%)" in capfd.readouterr().err
    with _contract.working("reading", quiet_s=1e9):
        pass
    assert capfd.readouterr().err == ""


def test_fine_is_zero_and_found_is_one(call):
    """The two other statuses, with JSON on stdout."""
    status, out, _ = call("explain 700", "--json")
    assert status == 0 and json.loads(out)["code"] == "illegal_address"
    status, out, _ = call("device", "--json", GFXGRAPH_ARCH="gfx1030")
    assert status == 0 and json.loads(out)["device"]["arch"] == "gfx1030"
    status, out, _ = call("port audit {d}/cuda", "--json")
    assert status == 1 and json.loads(out)["findings"]
    status, out, _ = call("port fix {d}/cuda --dry-run", "--json")
    assert status == 0 and "patch" in json.loads(out)
    status, out, _ = call("port rule capability-gate", "--json")
    assert status == 0 and json.loads(out)["bad"]
    status, out, _ = call("doctor", "--json", GFXGRAPH_GUARD="9")
    assert status == 1 and json.loads(out)["findings"]


def test_rules_speak_the_language_that_is_set(call):
    """GFXGRAPH_LANG holds for the port commands, too; --lang goes before it."""
    assert re.search("[\u4e00-\u9fff]", call("port rule capability-gate", GFXGRAPH_LANG="zh")[1])
    assert not re.search("[\u4e00-\u9fff]", call("port rule capability-gate --lang en", GFXGRAPH_LANG="zh")[1])


def test_short_version(call):
    """-V is --version."""
    assert call("-V")[:2] == call("--version")[:2]


@pytest.mark.parametrize(
    "line", ["port audit .", "port rules", "port rule GFX101", "port build .", "port fix . --hipify copy"]
)
def test_a_command_says_which_extra_is_missing(folder, line):
    """After a plain install: the package that lacks and the extra that brings it; nothing is written before."""
    ran = _without_packaging(folder, line)
    assert ran.returncode == 2 and ran.stderr.startswith("extra_missing: "), ran.stderr
    assert "packaging" in ran.stderr and "[port]" in ran.stderr and not os.path.exists(f"{folder}/copy")


@pytest.mark.parametrize("line", ["port audit --help", "port skill"])
def test_help_and_the_skill_need_no_extra(folder, line):
    """They are there after a plain install."""
    assert _without_packaging(folder, line).returncode == 0


def _without_packaging(folder, line):
    program = (
        f"import sys; sys.modules['packaging'] = None; from gfxgraph.cli.main import main; main({line.split()!a})"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)


STREAMS = """
import os, sys
os.close({fd})
sys.argv = ["gfxgraph", *{words}]
sys.std{name} = None
from gfxgraph.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("fd", "name", "words", "status"),
    [(0, "in", ["explain"], 0), (1, "out", ["explain", "700"], 0), (2, "err", ["explain", "nope.log"], 2)],
)
def test_a_closed_stream_is_no_bug(fd, name, words, status):
    """``<&-``, ``>&-`` and ``2>&-``: Python has None there, and the command ends as it would have."""
    program = STREAMS.format(fd=fd, name=name, words=words)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == status and "internal_error" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("encoding", "line"),
    [("ascii", "explain 700"), ("latin-1", "port rule GFX101 --json"), ("ascii:surrogateescape", "fly\udcff")],
)
def test_an_encoding_that_lacks_a_character_is_no_bug(folder, encoding, line):
    """It is shown as \\u4e2d, in JSON, too; for ASCII click writes UTF-8."""
    program = f"import sys; from gfxgraph.cli.main import main; main({line.split()!a})"
    env = {**os.environ, "PYTHONIOENCODING": encoding, "GFXGRAPH_LANG": "zh"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=env, cwd=folder)
    said = (done.stdout + done.stderr).decode("latin-1")
    assert "internal_error" not in said and "Traceback" not in said
    if "--json" in line:
        assert re.search("[\u4e00-\u9fff]", json.loads(done.stdout)["title"])


@pytest.mark.parametrize("line", ["explain 700 --lang en", "explain 700 --json"])
def test_a_full_disk_is_no_bug(line):
    """What could not be written to stdout is named on stderr, with status 2."""
    program = f"import sys; from gfxgraph.cli.main import main; main({line.split()})"
    env = {**os.environ, "GFXGRAPH_LANG": "en"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, env=env
        )
    assert done.returncode == 2 and done.stderr.startswith("file_unusable: ") and "stdout" in done.stderr


@pytest.mark.parametrize("line", ["run --simulate --report=x {d}/good.py", "report {d}/left"])
def test_a_current_folder_that_is_gone_is_no_bug(call, folder, line, monkeypatch, tmp_path):
    """What needs it says so."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    status, _, err = call(line)
    assert status == 2 and "internal_error" not in err and "what: " in err


def test_a_setting_that_nobody_reads_is_said(call):
    """A misspelt name would else look like a setting in force; a name that resembles none is left alone."""
    _, out, _ = call("doctor --json", GFXGRAPH_GAURD="2", GFXGRAPH_STATS="x", GFXGRAPH_SOMEBODYS="1")
    said = [each["en"] for each in json.loads(out)["findings"] if each["name"] == "settings"]
    assert said == ["GFXGRAPH_GAURD is not a setting of gfxgraph; did you mean GFXGRAPH_GUARD?"]


def test_explain_reads_what_is_no_regular_file(call, folder):
    """A pipe, as in ``gfxgraph explain <(dmesg)``; a file of which nothing is known is there all the same."""
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=(folder / "pipe").write_text, args=["hipErrorIllegalAddress\n"])
    writer.start()
    assert "illegal_address" in call("explain {d}/pipe")[1]
    writer.join()
    assert call("explain {d}/good.py")[0] == call("explain /dev/null")[0] == 1
    assert call("explain -- -1")[0] == 1


@pytest.mark.parametrize(
    ("source", "status"), [("x = 1\n", 0), ("import torch\nfast = torch.cuda.get_device_capability() >= (9, 0)\n", 1)]
)
def test_quiet_says_nothing_where_all_is_well(tmp_path, source, status):
    """What was found is printed all the same."""
    (tmp_path / "a.py").write_text(source)
    plain, quiet = (CliRunner().invoke(cli, ["port", "audit", str(tmp_path), *more]) for more in ([], ["--quiet"]))
    assert (plain.exit_code, quiet.exit_code) == (status, status)
    assert plain.stdout and quiet.stdout == (plain.stdout if status else "")


def test_the_tracker_is_that_of_the_packages_metadata(tmp_path, monkeypatch):
    """Its address where pyproject gave one when the package was built; in words where none did."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert _contract.tracker("en") == "the tracker of this repository" and "跟踪器" in _contract.tracker("zh")
    about = tmp_path / "gfxgraph_rocm-2.0.dist-info"
    about.mkdir()
    head = "Metadata-Version: 2.1\nName: gfxgraph-rocm\nVersion: 2.0\n"
    (about / "METADATA").write_text(head + "Project-URL: Issues, https://example.org/a/issues\n")
    assert _contract.tracker("en") == _contract.tracker("zh") == "https://example.org/a/issues"

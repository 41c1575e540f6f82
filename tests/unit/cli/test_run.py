"""``gfxgraph run``: programs are reached in every process, started as if by hand, or refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gfxgraph.cli.run import LaunchedProgram, split, wanted
from gfxgraph.reporting import run_line
from gfxgraph.startup.child_environment import first_on_path

SHOW = "import torch; print('on', getattr(torch, 'switched_on', 0))\n"


def test_script_is_activated_once(sandbox):
    """A script finds gfxgraph switched on when its own import of torch returns."""
    done = sandbox.gfxgraph("run", sandbox.script(SHOW))
    assert (done.stdout, done.stderr, done.returncode) == ("on 1\n", "", 0)


def test_script_without_torch_is_left_alone(sandbox):
    """A program that never imports torch never has it imported."""
    done = sandbox.gfxgraph("run", sandbox.script("import sys; print('torch' in sys.modules)"))
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_script_sees_what_python_would_show_it(sandbox):
    """Arguments, __main__ and sys.path are those of ``python script.py``."""
    script = sandbox.script(
        "import sys, json\nx = [sys.argv, __name__, __file__, sys.path[:2], sys.orig_argv[1:]]\nprint(json.dumps(x))",
        "elsewhere/program.py",
    )
    plain = sandbox.python(script, "--debug", "-m", "x", "--", "y").stdout
    under = sandbox.gfxgraph("run", "--debug", script, "--debug", "-m", "x", "--", "y").stdout
    assert json.loads(under) == json.loads(plain)


def test_exit_status_and_traceback_are_the_programs_own(sandbox):
    """An uncaught exception prints the same traceback as without gfxgraph, and the status is kept."""
    failing = sandbox.script("import torch\ndef f(): raise KeyError('x')\nf()\n")
    assert sandbox.gfxgraph("run", failing).stderr == sandbox.python(failing).stderr
    leaving = sandbox.script("import torch, sys; sys.exit(37)")
    assert sandbox.gfxgraph("run", leaving).returncode == 37


def test_a_library_that_is_missing_before_torch_is_there_is_explained(sandbox):
    """Once, after the traceback, which is the program's own; other errors stay as they are."""
    missing = "libamdhip64.so.6: cannot open shared object file: No such file or directory"
    done = sandbox.gfxgraph("run", sandbox.script(f"raise OSError({missing!r})"))
    assert done.stderr.count("missing_shared_library: ") == 1 and done.returncode == 1
    assert done.stderr.startswith("Traceback") and "missing_shared_library" not in done.stderr.split(missing)[0]
    failing = sandbox.script("{}['x']", "other.py")
    assert sandbox.gfxgraph("run", failing).stderr == sandbox.python(failing).stderr


def test_a_native_death_shows_where_python_was(sandbox):
    """The line that called into native code, on stderr; the signal stays the program's."""
    done = sandbox.gfxgraph("run", sandbox.script("import ctypes\nctypes.string_at(0)\n"))
    assert done.returncode in (-11, 139) and "Segmentation fault" in done.stderr and "line 2" in done.stderr


def test_module(sandbox):
    """-m runs a module, with the rest of the line as its arguments."""
    sandbox.script("import torch, sys; print(torch.switched_on, sys.argv[1:], __name__)", "tool/__main__.py")
    done = sandbox.gfxgraph("run", "-m", "tool", "--stats", "x")
    assert done.stdout == "1 ['--stats', 'x'] __main__\n", done.stderr


def test_command(sandbox):
    """-- runs any command; the Python processes below it are reached."""
    script = sandbox.script(SHOW)
    done = sandbox.gfxgraph("run", "--", "sh", "-c", f"python '{script}'; exit 5")
    assert (done.stdout, done.returncode) == ("on 1\n", 5), done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver"])  # a forkserver is spawned
def test_multiprocessing_workers_are_reached(sandbox, method):
    """Workers find gfxgraph switched on, however multiprocessing starts them."""
    script = sandbox.script(
        "import multiprocessing as mp\n"
        "def work(_):\n import torch\n return torch.switched_on\n"
        "if __name__ == '__main__':\n"
        f" with mp.get_context({method!r}).Pool(2) as pool: print(pool.map(work, range(2)))\n"
    )
    done = sandbox.gfxgraph("run", script)
    assert done.stdout == "[1, 1]\n", done.stderr


def test_subprocesses_are_reached(sandbox):
    """A child of a child is reached too."""
    sandbox.script(SHOW, "leaf.py")
    script = sandbox.script(
        "import subprocess, sys\nsubprocess.run(['sh', '-c', f'{sys.executable} leaf.py'], check=True)\n"
    )
    assert sandbox.gfxgraph("run", script).stdout == "on 1\n"


def test_the_sitecustomize_that_was_there_still_runs(sandbox):
    """Ours gives way to the next one on the path, which is imported under its own name."""
    sandbox.script("import builtins; builtins.their_own = __name__, __file__\n", "theirs/sitecustomize.py")
    script = sandbox.script("import sys; print(their_own, sys.modules['sitecustomize'].__file__)")
    path = f"{sandbox.folder}/theirs:{sandbox.environment['PYTHONPATH']}"
    file = f"{sandbox.folder}/theirs/sitecustomize.py"
    assert sandbox.gfxgraph("run", script, PYTHONPATH=path).stdout == f"('sitecustomize', '{file}') {file}\n"


def test_an_error_in_their_sitecustomize_is_reported_as_python_reports_it(sandbox):
    """A failing sitecustomize prints its error and the program runs, as without gfxgraph."""
    sandbox.script("raise ValueError('theirs')\n", "theirs/sitecustomize.py")
    path = f"{sandbox.folder}/theirs:{sandbox.environment['PYTHONPATH']}"
    done = sandbox.gfxgraph("run", sandbox.script(SHOW), PYTHONPATH=path)
    assert done.stdout == "on 1\n"
    assert "ValueError: theirs" in done.stderr


def test_python_without_gfxgraph_borrows_ours(sandbox):
    """A Python whose environment lacks gfxgraph finds the one that started it, and nothing else of its."""
    script = sandbox.script("import torch, sys\nprint(torch.switched_on, any('lib' == p[-3:] for p in sys.path))\n")
    (sandbox.folder / "other").mkdir()
    (sandbox.folder / "other" / "torch").symlink_to(sandbox.folder / "lib" / "torch")
    inner = f"PYTHONPATH=$(echo $PYTHONPATH | cut -d: -f1):{sandbox.folder}/other python '{script}'"
    done = sandbox.gfxgraph("run", "--", "sh", "-c", inner)
    assert done.stdout == "1 False\n", done.stderr


def test_torch_keeps_its_own_loader(sandbox):
    """Nothing of the hook can be seen from torch, and reloading torch does not activate again."""
    script = sandbox.script(
        "import torch, importlib, sys\n"
        "print(type(torch.__loader__).__name__, 'exec_module' in vars(torch.__loader__))\n"
        "importlib.reload(torch)\n"
        "hooks = [f for f in sys.meta_path if 'gfxgraph.startup.hook' in type(f).__module__]\n"
        "print(torch.switched_on, hooks)\n"
    )
    done = sandbox.gfxgraph("run", script)
    assert done.stdout == "SourceFileLoader False\n1 []\n", done.stderr


@pytest.mark.parametrize(
    ("torch", "options", "first_line"),
    [
        ("none", [], "no_torch: PyTorch is not installed"),
        ("none", ["--simulate"], "no_torch: PyTorch is not installed"),
        ("cpu", [], "not_rocm_cpu_torch: this PyTorch is a CPU build"),
        ("cpu", ["--allow-cuda"], "not_rocm_cpu_torch: this PyTorch is a CPU build"),
        ("cuda", [], "not_rocm_cuda_torch: this PyTorch is a CUDA build"),
    ],
)
def test_unsuitable_torch_is_refused_before_the_program_starts(sandbox, torch, options, first_line):
    """Exit status 2, the reason on stderr without a traceback, and nothing of the program has run."""
    sandbox.torch(torch)
    done = sandbox.gfxgraph("run", *options, sandbox.script("open('started', 'w')"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == first_line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (sandbox.folder / "started").exists()


@pytest.mark.parametrize(
    ("torch", "option"), [("cuda", "--allow-cuda"), ("cuda", "--simulate"), ("cpu", "--simulate")]
)
def test_permission_lets_the_program_start(sandbox, torch, option):
    """What was refused runs when it is asked for."""
    sandbox.torch(torch)
    done = sandbox.gfxgraph("run", option, sandbox.script(SHOW))
    assert (done.stdout, done.returncode) == ("on 1\n", 0), done.stderr


def test_refusal_found_after_the_start(sandbox):
    """What only the device can tell ends the program at its import of torch: text, status 2, no traceback."""
    script = sandbox.script("import torch\nopen('went on', 'w')\n")
    done = sandbox.gfxgraph("run", script, STANDIN_REFUSES="1")
    assert done.returncode == 2
    assert done.stderr.startswith("no_gpu: PyTorch has ROCm, but sees no GPU\n")
    assert "Traceback" not in done.stderr
    assert not (sandbox.folder / "went on").exists()


def test_debug_shows_the_traceback_of_a_refusal(sandbox):
    """HGB_LOG_LEVEL=debug is for whoever must see where a refusal came from."""
    sandbox.torch("cpu")
    done = sandbox.gfxgraph("run", sandbox.script(""), HGB_LOG_LEVEL="debug")
    assert "Traceback" in done.stderr and "not_rocm_cpu_torch" in done.stderr
    done = sandbox.gfxgraph(
        "run", "--simulate", sandbox.script("import torch"), HGB_LOG_LEVEL="debug", STANDIN_REFUSES="1"
    )
    assert "Traceback" in done.stderr and "no_gpu" in done.stderr
    script = sandbox.script("import torch\nimport gfxgraph\n")  # without the entry point it is that import that fails
    wanted = {"GFXGRAPH": "require", "HGB_LOG_LEVEL": "debug", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = sandbox.python(script, **wanted, STANDIN_REFUSES="1")
    assert done.returncode == 2 and "Traceback" in done.stderr and "  do:" in done.stderr, done.stderr


def test_what_is_not_there_is_refused(sandbox):
    """A script or command that does not exist is refused in our words; so is a bad setting."""
    done = sandbox.gfxgraph("run", "nothing.py")
    assert done.returncode == 2 and done.stderr.startswith("script_not_found: ") and "nothing.py" in done.stderr
    done = sandbox.gfxgraph("run", "--", "no-such-command-here")
    assert done.returncode == 2 and "no-such-command-here" in done.stderr
    done = sandbox.gfxgraph("run", sandbox.script(""), GFXGRAPH_GUARD="9")
    assert done.returncode == 2 and done.stderr.startswith("bad_setting: ")


def test_a_name_that_is_no_file_here_is_a_command(sandbox):
    """``run vllm serve M`` and ``run python a.py`` are run as typed; a file of that name here is the script."""
    script = sandbox.script(SHOW)
    tool = sandbox.folder / "bin" / "serve-a-model"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\n" + SHOW)
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in ([Path(sys.executable).name, script], ["serve-a-model", "M", "--port", "1"]):
        done = sandbox.gfxgraph("run", *line, PATH=path)
        assert (done.stdout, done.returncode) == ("on 1\n", 0), (line, done.stderr)
    sandbox.script("print('the file')", "serve-a-model")
    assert sandbox.gfxgraph("run", "serve-a-model", PATH=path).stdout == "the file\n"


@pytest.mark.parametrize(
    "line", [[], ["--"], ["-m"], ["--guard"], ["--allow-cuda", "--simulate", "x.py"], ["--nope", "x.py"]]
)
def test_usage_errors(sandbox, line):
    """Status 2 and a line that says what is missing or contradictory."""
    done = sandbox.gfxgraph("run", *line)
    assert done.returncode == 2 and done.stderr.startswith("bad_usage: ")


def test_stats_of_every_process(sandbox):
    """Each process that used torch leaves a line of JSON; a forked child leaves its parent's to it."""
    script = sandbox.script(
        "import gfxgraph, torch, subprocess, sys\n"
        "if len(sys.argv) < 2: subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
        "import os\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait()\n"
    )
    sandbox.python(script, GFXGRAPH="1", GFXGRAPH_STATS=str(sandbox.folder / "out.jsonl"))
    lines = [json.loads(line) for line in (sandbox.folder / "out.jsonl").read_text().splitlines()]
    assert [line["argv"][1:] for line in lines] == [["child"], []]
    assert {line["stats"]["replay_count"] for line in lines} == {7}


def test_environment_alone_activates_on_import_of_gfxgraph(sandbox):
    """GFXGRAPH=1 switches on once gfxgraph and torch are both imported, whichever comes first."""
    for line in ("import gfxgraph, torch", "import torch, gfxgraph"):
        done = sandbox.python("-c", f"{line}; print(torch.switched_on)", GFXGRAPH="1")
        assert done.stdout == "1\n", done.stderr
        done = sandbox.python("-c", f"{line}; print(hasattr(torch, 'switched_on'))")
        assert done.stdout == "False\n", done.stderr


def test_split():
    """Our options end where the program begins; a value left out does not take the script's name."""
    assert split(["a.py", "--validate"]) == ([], LaunchedProgram(("a.py", "--validate"), False))
    assert split(["--simulate", "a.py"]) == (["--simulate=hip"], LaunchedProgram(("a.py",), False))
    assert split(["--simulate=cuda", "-m", "m", "-x"]) == (
        ["--simulate=cuda"],
        LaunchedProgram(("-m", "m", "-x"), False),
    )
    assert split(["--on-unsafe", "pin", "--", "a.py"]) == (
        ["--on-unsafe", "pin"],
        LaunchedProgram(("a.py",), True),
    )
    assert split(["x", "--simulate", "hip"]) == ([], LaunchedProgram(("x", "--simulate", "hip"), False))  # its own
    assert split(["--simulate", "hip", "--json", "x"]) == (
        ["--simulate=hip", "--json"],
        LaunchedProgram(("x",), False),
    )
    assert split(["--help"]) == (["--help"], None)


def test_wanted_sets_only_what_was_asked():
    """An option that was not given leaves the user's variable as it is."""
    left_out = dict.fromkeys(("on_unsafe", "guard"))
    left_out |= {"allow_cuda": False, "simulate": "", "validate": False, "debug": False}
    assert wanted(left_out) == {}
    asked = {"allow_cuda": True, "on_unsafe": "pin", "validate": True, "debug": True}
    assert wanted(left_out | asked) == {
        "GFXGRAPH": "validate",
        "HGB_LOG_LEVEL": "debug",
        "GFXGRAPH_ALLOW_CUDA": "1",
        "GFXGRAPH_ON_UNSAFE": "pin",
    }


def test_users_variables_are_kept(sandbox):
    """A GFXGRAPH that the user has set says more than ours would."""
    script = sandbox.script("import os; print(os.environ['GFXGRAPH'], os.environ.get('GFXGRAPH_ALLOW_CUDA'))")
    assert sandbox.gfxgraph("run", script).stdout == "1 None\n"
    assert sandbox.gfxgraph("run", script, GFXGRAPH="validate").stdout == "validate None\n"
    assert sandbox.gfxgraph("run", script, GFXGRAPH="0").stdout == "1 None\n"


def test_first_on_path():
    """The folder comes first once; an empty entry, which means the current folder, is kept."""
    assert first_on_path(Path("/s"), "") == "/s"
    assert first_on_path(Path("/s"), "/a::/b") == "/s:/a::/b"
    assert first_on_path(Path("/s"), "/s:/a") == "/s:/a"


LINES = {
    "": (0, "nothing was captured; gfxgraph.graphed(function) captures a function"),
    "import os, torch; os.abort()": (
        -6,
        "it ended with SIGABRT: where a GPU is at fault, gfxgraph run",
    ),
}


@pytest.mark.parametrize("text", LINES)
def test_a_run_ends_with_one_line(sandbox, text):
    """What was captured and what to do next, on stderr; --quiet silences it, --json writes it as JSON."""
    status, told = LINES[text]
    script = sandbox.script(f"import torch\n{text}")
    done = sandbox.python("-m", "gfxgraph", "run", script)
    assert done.returncode == status and done.stderr.splitlines()[-1].startswith(f"gfxgraph: {told}"), done.stderr
    as_json = json.loads(sandbox.python("-m", "gfxgraph", "run", "--json", script).stderr.splitlines()[-1])
    assert as_json["status"] == status and as_json["next"].startswith(told)
    assert "gfxgraph: " not in sandbox.gfxgraph("run", script).stderr


@pytest.mark.parametrize("option", [["-I"], []])
def test_a_run_in_which_nothing_was_active_says_so(sandbox, option):
    """A Python that ignores its environment, a program without torch."""
    script = sandbox.script("print('ran')\n")
    done = sandbox.python("-m", "gfxgraph", "run", "--", "env", "python", *option, script)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert done.stderr == "gfxgraph: no process used torch with gfxgraph on\n"


def account(**ways):
    base = {"by_graph": 0, "eager": {}, "raised": {}, "in_pieces": {}, "slow": {}, "places": {}, "seconds": {}}
    return {"name": "f", "where": "a.py:1", "operations": (0, 0), **base, **ways}


def line(*accounts, status=0, is_guarded=False, is_page=True, **stats):
    rows = [{"calls": {"of": [each]}, **stats} for each in accounts] or ([stats] if stats else [])
    return run_line.summary(status, rows, is_guarded, False, is_page)["line"].removeprefix("gfxgraph: ")


def test_the_line_at_the_end_says_how_the_calls_ran():
    """Shares, the costliest reasons with their lines, errors; several processes added up; a bad end."""
    pieces = account(in_pieces={"broken": 40}, operations=(80, 100), places={"broken": "m.py:7"}, by_graph=60)
    told = line(pieces, account(eager={"warm-up": 2}, raised={"KeyError": 1}, places={"KeyError": "m.py:9"}))
    assert told == (
        "60 of 103 calls by graph (58 %), 40 in pieces (80 of 100 operations in graphs): f, broken at m.py:7 (40), "
        "2 eager: warm-up (2); 1 KeyError at m.py:9 (2 processes)"
    )
    assert line(account(by_graph=3)) == "3 of 3 calls by graph (100 %); nothing to do"
    assert line(account(eager={"why": 3}), is_page=False).endswith("--report FILE.html")
    fallback = {"kind": "fallback", "reason": "launch failed", "op": "", "where": "b.py:2"}
    assert line(account(by_graph=3), events=[fallback]).endswith("; first fallback at b.py:2: launch failed")
    stale = {"kind": "input_let_go", "reason": "w, float32[2], is held ...", "op": "", "where": "b.py:2", "count": 1}
    told = line(account(by_graph=3), events=[stale, {**stale, "count": 2}])
    assert told.endswith("; 3 inputs may be stale: w at b.py:2")
    told = line(account(by_graph=3), reloads_followed=3, tensors_followed=402, reload_bytes_kept=0)
    assert told.endswith(
        "; 3 reloads followed (402 tensors copied into the graphs' memory, 0 MiB kept); nothing to do"
    )
    assert line(account(by_graph=3), status=-15).endswith("; it ended with SIGTERM")
    assert line(capture_count=2) == "2 captured, none replayed"
    assert line(status=-6, is_guarded=True) == "it ended with SIGABRT"
    assert line(status=1) == "it ended with exit status 1"
    assert "2 replays differed" in line(validation_failures=2)


def test_a_process_that_is_killed_is_counted(sandbox):
    """What it had counted half a second before; one that ends by itself is counted once."""
    script = sandbox.script("import torch, time, os, signal\ntime.sleep(1.5)\nos.kill(os.getpid(), signal.SIGTERM)\n")
    done = sandbox.python("-m", "gfxgraph", "run", "--json", script)
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["status"], told["processes"], told["replay_count"]) == (-15, 1, 7)
    once = sandbox.python("-m", "gfxgraph", "run", "--json", sandbox.script("import torch, time\ntime.sleep(1.5)\n"))
    assert json.loads(once.stderr.splitlines()[-1])["processes"] == 1


def test_signals_reach_the_program(sandbox):
    """SIGTERM sent to us ends the program as it likes, and the program dies with us where we are killed."""
    script = sandbox.script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (open('told', 'w').close(), sys.exit(9)))\n"
        "open('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'ready')\ntime.sleep(60)\n"
    )
    for number, status in ((signal.SIGTERM, 9), (signal.SIGKILL, -9)):
        line = [sys.executable, "-m", "gfxgraph", "run", str(script)]
        ours = subprocess.Popen(line, cwd=sandbox.folder, env=sandbox.environment, stderr=subprocess.DEVNULL)
        until((sandbox.folder / "ready").exists)
        ours.send_signal(number)
        assert ours.wait(60) == status
        until((sandbox.folder / "told").exists)
        (sandbox.folder / "ready").unlink()
        (sandbox.folder / "told").unlink()


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_statistics_that_cannot_be_written_hold_up_nothing(sandbox):
    """The program ends as it would have, with one line on stderr."""
    done = sandbox.python(
        sandbox.script("import torch, gfxgraph; print('done')"), GFXGRAPH="1", GFXGRAPH_STATS="gone/x"
    )
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("gfxgraph: statistics not written to ")

"""``gfxgraph demo``: where it runs, and that it tells what happened without embellishment."""

from __future__ import annotations

import html
import re

import pytest

from gfxgraph.cli.demo import DemoDevice, examples_folder, fallbacks, show, verdict

# Prints what decode.py would, and leaves its statistics by the same way.
PROGRAM = """
import json, os, sys, torch
print(json.dumps({{"text": "Alice ran [on] and", "texts_equal": {equal}, "eager_tokens_per_s": 400.0,
    "graphed_tokens_per_s": 2000.0, "n_tokens": 4, "device": "some device"}}))
n_tokens = "80" if {simulate!r} else "400"
assert sys.argv[1:] == ["--json", "--prompt", "Alice ran", "--tokens", n_tokens], sys.argv
assert os.environ.get("GFXGRAPH_SIMULATE") == {simulate!r}
sys.exit({status})
"""
STATS = {
    "capture_count": 1,
    "replay_count": 1234,
    "fallback_count": 0,
    "fallbacks": {},
    "validations": 3,
    "validation_failures": 0,
    "validations_skipped": 0,
}


def demo(sandbox, *, equal=True, simulate="hip", status=0, options=(), **stats):
    sandbox.script(PROGRAM.format(equal=equal, simulate=simulate, status=status), "lib/gfxgraph/examples/decode.py")
    health = sandbox.folder / "lib/gfxgraph/process/health.py"
    health.write_text(health.read_text().replace('{"replay_count": 7}', repr(STATS | stats)))
    return sandbox.gfxgraph("demo", "--prompt", "Alice ran", *options, COLUMNS="100")


def test_without_a_gpu(sandbox):
    """A CPU torch runs in the simulator, and both the reason and the worthlessness of the rates are said."""
    sandbox.torch("cpu")
    done = demo(sandbox)
    assert done.returncode == 0, done.stderr
    assert "No GPU here (torch 2.11.0+cpu is a CPU build): running in the simulator." in done.stdout
    assert "nothing about speed" in done.stdout.replace("\n", " ")
    assert "times eager" not in done.stdout
    assert "Alice ran [on] and" in done.stdout
    assert "1,234" in done.stdout
    assert "3 replays compared with eager execution, all equal" in done.stdout


def test_rocm(sandbox):
    """A ROCm torch that sees a GPU uses it, and the gain is shown."""
    cuda = "class cuda:\n is_available = lambda: True\n get_device_name = lambda: 'Radeon'\n"
    sandbox.script("from torch.version import __version__\n" + cuda, "lib/torch/__init__.py")
    done = demo(sandbox, simulate=None)
    assert done.returncode == 0, done.stderr
    assert "Running on Radeon, with torch 2.11.0+rocm7.2." in done.stdout
    assert "2,000 tokens/s  (5.0 times eager)" in done.stdout
    assert "simulator" not in done.stdout


def test_gpu_build_without_a_gpu(sandbox):
    """A GPU build that sees no GPU falls back to the simulator and says so."""
    cuda = "class cuda:\n is_available = lambda: False\n"
    sandbox.script("from torch.version import __version__\n" + cuda, "lib/torch/__init__.py")
    done = demo(sandbox)
    assert "torch 2.11.0+rocm7.2 sees none" in done.stdout
    assert done.returncode == 0, done.stderr


def test_bad_news_is_told(sandbox):
    """Unequal texts, failed validations and fallbacks are shown, and the exit status is 1."""
    bad = {"fallback_count": 2, "fallbacks": {"launch_failed": 2}, "validations": 3, "validation_failures": 1}
    done = demo(sandbox, equal=False, options=["--simulate"], **bad)
    assert done.returncode == 1
    assert "2 (launch_failed: 2)" in done.stdout
    assert "NO: eager wrote another text" in done.stdout
    assert "1 of 3 replays differed from eager" in done.stdout


def test_a_failing_example_is_not_hidden(sandbox):
    """Its own error stays on stderr, with its status; ours is 2, for 1 would say that the texts differ."""
    done = demo(sandbox, status=7, options=["--simulate"])
    assert done.returncode == 2
    assert "The example ended with status 7" in done.stderr


def test_no_torch(sandbox):
    """Without torch the demo is refused as run refuses."""
    sandbox.torch("none")
    done = demo(sandbox)
    assert done.returncode == 2
    assert done.stderr.startswith("no_torch: ")


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        ({"validations": 0, "validation_failures": 0}, "none was made"),
        (
            {"validations": 0, "validation_failures": 0, "validations_skipped": 2},
            "none was made; 2 could not be",
        ),
        (
            {"validations": 1, "validation_failures": 0, "validations_skipped": 2},
            "1 replays compared with eager execution, all equal; 2 could not be compared",
        ),
    ],
)
def test_what_was_not_compared_never_reads_as_passed(stats, said):
    """The verdict names what was left out."""
    assert verdict(stats) == said


def test_fallbacks_without_reasons():
    """A count without reasons is still a count."""
    assert fallbacks({"fallback_count": 0}) == "none"
    assert fallbacks({"fallback_count": 3}) == "3 (reason not recorded)"


def test_examples_are_found_in_the_source_tree():
    """decode.py, its model and its weights are together, and the weights are at most 2 MB."""
    folder = examples_folder()
    assert (folder / "char_model.py").is_file()
    assert (folder / "char_model.pt").stat().st_size <= 2_000_000


def test_the_picture_in_the_documents_is_of_todays_screen(capsys):
    """Each label and the closing sentence: after a change, python tools/make_picture.py."""
    place = DemoDevice(is_simulated=True, sentence="", variables={})
    result = {"eager_tokens_per_s": 5.0, "graphed_tokens_per_s": 32.0, "device": "", "texts_equal": True, "text": ""}
    show(place, result, STATS)
    printed = capsys.readouterr().out.splitlines()
    picture = html.unescape((examples_folder().parent / "docs/images/demo.svg").read_text(encoding="utf-8"))
    shown = " ".join(re.sub(r"<[^>]+>", " ", picture).split())
    labels = [line[:16].strip() for line in printed if line[:16].strip() and "simulator" not in line]
    assert len(labels) == 8 and [label for label in labels if label not in shown] == []
    assert all(word in shown for word in printed[-1].replace(".", "").split())

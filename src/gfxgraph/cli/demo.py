"""Run an unmodified CUDA-graph program under gfxgraph and show what happened.

The program is examples/decode.py, which does not mention gfxgraph. It runs as ``gfxgraph run`` would run
it: on an AMD GPU, on an NVIDIA GPU, or without a GPU in the simulator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gfxgraph.cli import _contract
from gfxgraph.cli._contract import DEFAULT_PROFILE
from gfxgraph.errors import ActivationError
from gfxgraph.hardware.software import find_torch
from gfxgraph.startup import stats_file
from gfxgraph.startup.child_environment import program_environment

DEFAULT_PROMPT = "Alice opened the little door and"
N_VALIDATED_REPLAYS = 3
N_TOKENS, N_TOKENS_SIMULATED = 400, 80
MOST_TOKENS = 4000  # the example's text holds 4,096 characters, the prompt among them
ASK_FOR_GPU = "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name())"


@dataclass(frozen=True, slots=True)
class DemoDevice:
    """Where the demo runs: a sentence for the reader, and the variables that choose it."""

    sentence: str
    variables: dict[str, str]
    is_simulated: bool


@click.command("demo", cls=_contract.Command)
@click.option("--prompt", default=DEFAULT_PROMPT, show_default=True, help="The beginning of the text.")
@click.option(
    "--tokens",
    type=click.IntRange(1, MOST_TOKENS),
    help=f"How many characters to write; {N_TOKENS}, or {N_TOKENS_SIMULATED} in the simulator, if not given.",
)
@_contract.simulate
@_contract.as_json
@_contract.quietly
def command(prompt: str, tokens: int | None, simulate: str, as_json: bool) -> None:
    """Run an unmodified CUDA-graph program under gfxgraph and show what happened.

    Exit status: 0 graphed and eager wrote the same text, 1 they did not, 2 it could not run.
    """
    place = choose_place(simulate)
    if not as_json:
        click.secho(place.sentence, bold=True)
    n_tokens = tokens or (N_TOKENS_SIMULATED if place.is_simulated else N_TOKENS)
    with _contract.working("demo: writing the text twice, without and with a graph"):
        result, stats = run_example(place, ["--prompt", prompt, "--tokens", str(n_tokens)])
    if as_json:
        click.echo(json.dumps({**result, "is_simulated": place.is_simulated, "stats": stats}, ensure_ascii=False))
    else:
        show(place, result, stats)
    sys.exit(0 if result["texts_equal"] and not stats["validation_failures"] else 1)


def choose_place(simulate: str = "") -> DemoDevice:
    """Return where this machine can run the demo, a GPU before the simulator.

    Raises:
        ActivationError: `no_torch`.
    """
    build = find_torch()
    if build.kind == "none":
        raise ActivationError("no_torch", python=sys.executable)
    # A matrix of this model is too small to share: threads would spend their time waiting for each other.
    simulator = {"GFXGRAPH_SIMULATE": simulate or DEFAULT_PROFILE, "OMP_NUM_THREADS": "1"}
    if simulate:
        return DemoDevice("Running in the simulator, as asked.", simulator, True)
    if not build.hip and not build.cuda:
        why = f"torch {build.version} is a CPU build"
        return DemoDevice(f"No GPU here ({why}): running in the simulator.", simulator, True)
    done = subprocess.run([sys.executable, "-c", ASK_FOR_GPU], capture_output=True, text=True)
    gpu = done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else "False"
    if gpu == "False":
        why = f"torch {build.version} sees none; gfxgraph doctor says why"
        return DemoDevice(f"No GPU here ({why}): running in the simulator.", simulator, True)
    if build.hip:
        return DemoDevice(f"Running on {gpu}, with torch {build.version}.", {}, False)
    sentence = f"Running on {gpu}, with torch {build.version}: not an AMD GPU, allowed for this demo."
    return DemoDevice(sentence, {"GFXGRAPH_ALLOW_CUDA": "1"}, False)


def examples_folder() -> Path:
    """Return the folder with the examples: inside an installed package, beside ``src`` in a source tree."""
    package = Path(__file__).parent.parent
    places = [package / "examples", package.parent.parent / "examples"]
    for folder in places:
        if (folder / "decode.py").is_file():
            return folder
    tried = " or ".join(str(folder / "decode.py") for folder in places)
    raise ActivationError("script_not_found", script=tried, problem="not found")


def run_example(place: DemoDevice, arguments: list[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Run decode.py; return what it printed, and gfxgraph's statistics of it."""
    script = examples_folder() / "decode.py"
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.jsonl"
        asked = place.variables | {
            stats_file.VARIABLE: str(stats),
            "GFXGRAPH_VALIDATE_REPLAYS": str(N_VALIDATED_REPLAYS),
        }
        environment, _ = program_environment(asked)
        line = [sys.executable, str(script), "--json", *arguments]
        # In a group of its own: Ctrl-C reaches us alone, and ``run`` then ends it.
        done = subprocess.run(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
        )
        if done.returncode != 0:
            click.echo(f"The example ended with status {done.returncode}; it says why above.", err=True)
            sys.exit(_contract.COULD_NOT)
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return result, json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])["stats"]


def show(place: DemoDevice, result: dict[str, Any], stats: dict[str, Any]) -> None:
    """Print the text, and what happened, a line for each fact."""
    eager, graphed = result["eager_tokens_per_s"], result["graphed_tokens_per_s"]
    gain = "" if place.is_simulated else f"  ({graphed / eager:.1f} times eager)"
    rows = {
        "where": result["device"],
        "eager": f"{eager:,.0f} tokens/s",
        "graphed": f"{graphed:,.0f} tokens/s{gain}",
        "same text": "yes" if result["texts_equal"] else "NO: eager wrote another text",
        "graphs captured": stats["capture_count"],
        "replays": f"{stats['replay_count']:,}",
        "fallbacks": fallbacks(stats),
        "validation": verdict(stats),
    }
    click.echo(f"\n{result['text']}\n")
    for name, value in rows.items():
        click.echo(f"{click.style(f'{name:<16}', dim=True)} {value}")
    if place.is_simulated:
        click.secho(
            "The simulator checks that graphs are captured and replayed correctly. It says nothing about speed: "
            "these rates are those of a CPU imitating a GPU.",
            fg="yellow",
        )


def fallbacks(stats: dict[str, Any]) -> str:
    """Return how often eager execution stood in for a graph, and why."""
    if not stats["fallback_count"]:
        return "none"
    reasons = ", ".join(f"{reason}: {n}" for reason, n in stats.get("fallbacks", {}).items())
    return f"{stats['fallback_count']} ({reasons or 'reason not recorded'})"


def verdict(stats: dict[str, object]) -> str:
    """Return what came of comparing replays with eager; what was not compared never reads as passed."""
    done, failed = stats.get("validations", 0), stats["validation_failures"]
    skipped = stats.get("validations_skipped", 0)
    if failed:
        return f"{failed} of {done or failed} replays differed from eager; eager's results were used"
    if not done:
        return "none was made" + (f"; {skipped} could not be" if skipped else "")
    more = f"; {skipped} could not be compared" if skipped else ""
    return f"{done} replays compared with eager execution, all equal{more}"

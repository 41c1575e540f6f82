"""``gfxgraph check`` against fuzzed programs: is an unsafe operation missed, is a safe program accused?

    python benchmarks/score_check.py [--programs N] [--first SEED] [--seconds S] [--out FILE]

The judge is torch without gfxgraph in the simulator's CUDA profile, which refuses in a capture what CUDA refuses.
Where its capture of a program fails, ``check`` must have a finding at that very line. Where it succeeds, findings on
operations of the table (which HIP runs without an error, or which a replay would not repeat) are counted, and all
others are false. Programs that torch alone cannot run are not judged: a capture nested in one is refused there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import linecache
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "property"))
import fuzz_check  # noqa: E402
import fuzz_grammar  # noqa: E402
import fuzz_statements  # noqa: E402, F401  (registers the kinds of statements)

import gfxgraph  # noqa: E402
import gfxgraph_simulator as simulator  # noqa: E402
from gfxgraph.core.unsafe import BY_NAME  # noqa: E402
from gfxgraph.reporting import capture_check as check  # noqa: E402


def bodies_of(program: Any) -> tuple[dict[str, Any], Any]:
    """The program's names, and one function that runs all of its bodies."""
    emitted = program.emit()
    names: dict[str, Any] = {"torch": torch, "F": fuzz_check.F, "q": fuzz_check.q, "external": fuzz_check.external}
    names["checkpoint"] = fuzz_check.checkpoint
    names.update(fuzz_check.world())
    text = "\n".join([emitted.setup, *emitted.bodies])
    linecache.cache[fuzz_check.FILENAME] = (len(text), None, text.splitlines(keepends=True), fuzz_check.FILENAME)
    exec(compile(text, fuzz_check.FILENAME, "exec"), names)
    if "inner" in emitted.tags:
        fuzz_check.add_inner(names)

    def run() -> None:
        names["RESULTS"].clear()
        with getattr(torch, program.mode)() if program.mode else contextlib.nullcontext():
            for i in range(len(emitted.bodies)):
                names["RESULTS"].update(names[f"body{i}"]([]))

    return names, run


NOT_JUDGED = -1


def judged(program: Any) -> int | None:
    """The line at which stock torch's capture fails; None where it does not."""
    undo = simulator.install("cuda")
    try:
        _, run = bodies_of(program)
        try:
            run()
        except Exception:  # noqa: BLE001  (whatever it raises without a capture)
            return NOT_JUDGED
        graph = torch.cuda.CUDAGraph()  # the function alone is asked about: nobody has registered its generator
        try:
            with torch.cuda.graph(graph):
                run()
        except Exception as error:  # noqa: BLE001  (whatever a capture makes it raise)
            line, said = 0, error
            while said is not None:  # the end of a dead capture raises again; the first error is the one to judge by
                trace = said.__traceback__
                while trace is not None:
                    if trace.tb_frame.f_code.co_filename == fuzz_check.FILENAME:
                        line = trace.tb_lineno
                    trace = trace.tb_next
                said = said.__context__
            return line
        return None
    finally:
        undo.undo()
        fuzz_check.forget_device()


def found_by_check(program: Any) -> check.Checked:
    gfxgraph.enable(simulate="hip", validate=False)
    try:
        _, run = bodies_of(program)
        return check.check(run)
    finally:
        gfxgraph.disable()
        fuzz_check.forget_device()


def score(first: int, n: int, seconds: float) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    missed, false = [], []
    began = time.monotonic()
    for seed in range(first, first + n):
        if time.monotonic() - began > seconds:
            break
        program = fuzz_grammar.random_program(seed)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            line = judged(program)
            if line == NOT_JUDGED:
                counts["not judged"] += 1
                continue
            try:
                seen = found_by_check(program)
            except check.CannotCheck as error:
                counts["could not run"] += 1
                false.append([seed, str(error)])
                continue
        findings = list(seen.findings)
        counts["programs"] += 1
        counts["findings"] += len(findings)
        if line is None:
            counts["safe for the judge"] += 1
            known = [f for f in findings if f.op in BY_NAME or f.op.startswith("Tensor.")]
            counts["findings by the table in safe programs"] += len(known)
            rest = [f for f in findings if f not in known]
            if rest:
                counts["safe programs accused"] += 1
                false.append([seed, [f.text() for f in rest]])
        else:
            counts["unsafe for the judge"] += 1
            if not any(f.line == line for f in findings):
                counts["missed"] += 1
                missed.append([seed, line, [f.text() for f in findings][:4]])
    return {"first": first, "counts": dict(counts), "missed": missed, "false": false}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program later than this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = score(asked.first, asked.programs, asked.seconds)
    print(json.dumps(found, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

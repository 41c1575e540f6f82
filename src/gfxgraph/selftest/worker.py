"""One case of the self-test in this process, which was started for it and ends with it.

    python -m gfxgraph.selftest.worker [--simulate PROFILE] [--allow-cuda] --result FILE [CASE]

Without a case it describes the device and lists the cases. The result goes to a file: whatever torch, the
runtime or a dying process print cannot be mistaken for it. It is written before the process ends, so the
parent sees an abort at exit as what it is: a case that was right, in a process that died.

Exit status: 0 passed, 1 failed, 77 skipped, 2 gfxgraph cannot be used here.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import gfxgraph
from gfxgraph import files
from gfxgraph.errors import GfxGraphError
from gfxgraph.hardware.device import device_info
from gfxgraph.process import process

PASS, FAIL, REFUSED, SKIP = 0, 1, 2, 77
CASES = "gfxgraph.selftest.cases"


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulate", default="")
    parser.add_argument("--allow-cuda", action="store_true")
    parser.add_argument("--module", default=CASES)
    parser.add_argument("--dump-after", type=float, default=0)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("case", nargs="?", default="")
    asked = parser.parse_args(arguments)
    faulthandler.enable()
    if asked.dump_after > 0:
        # Where a hang hangs; the parent kills the process soon after.
        faulthandler.dump_traceback_later(asked.dump_after)
    _no_core_files()
    if asked.case:
        return run(asked)
    status, described = describe(asked)
    write(asked.result, described)
    return status


def write(path: Path, result: dict[str, Any]) -> None:
    files.write(path, json.dumps(result, default=str))


def run(asked: argparse.Namespace) -> int:
    """Run one case and write what came of it; what it raises goes on, to be printed, once that is written."""
    chosen = load(asked.module)[asked.case]
    # lazily: the parent imports this module, and never torch
    from gfxgraph.selftest.bench import Bench, CaseSkipped

    command = ["-m", "gfxgraph.selftest.worker", "--module", asked.module]
    command += ["--simulate", asked.simulate] if asked.simulate else []
    command += ["--allow-cuda"] if asked.allow_cuda else []
    bench = Bench(command)
    reason = ""
    try:
        enable(asked, chosen.settings)
        chosen.run(bench)
        reason = hidden_trouble(chosen)
        return FAIL if reason else PASS
    except CaseSkipped as skipped:
        reason = str(skipped)
        return SKIP
    finally:
        error = sys.exception()
        reason = f"{type(error).__name__}: {error}" if error is not None else reason
        write(asked.result, {"reason": reason, "figures": bench.figures, "stats": stats()})


def hidden_trouble(chosen: Any) -> str:
    """What gfxgraph had to do for the case to pass that it should not have had to do."""
    found = stats()
    if found["validation_failures"] and not chosen.may_fall_back:
        return f"{found['validation_failures']} replays differed from eager execution; eager's results were used"
    if found["fallback_count"] and not chosen.may_fall_back:
        return f"eager execution stood in for a graph: {found['fallbacks']}"
    return ""


def describe(asked: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """The device as the runtime and torch see it, and the cases there are; one small kernel shows it alive."""
    try:
        enable(asked, {"validate": False})
    except GfxGraphError as error:
        fields = {name: str(value) for name, value in error.fields.items()}
        return REFUSED, {"refused": {"code": error.code, "fields": fields}}
    # lazily: the parent imports this module, and never torch
    import torch

    state = process.require()
    total = int(torch.arange(1000, device="cuda").sum())
    if total != 499500:
        return FAIL, {"reason": f"the sum of 0 to 999 on the device was {total}"}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    device = {
        "platform": state.platform,
        "name": properties.name,
        "arch": str(getattr(properties, "gcnArchName", "")) or f"sm_{properties.major}{properties.minor}",
        "n_devices": torch.cuda.device_count(),
        "compute_units": properties.multi_processor_count,
        "memory_mib": properties.total_memory >> 20,
        "memory_free_mib": torch.cuda.mem_get_info()[0] >> 20,
        "torch": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "driver": None
        if state.driver is None
        else {
            "name": state.driver.name,
            "version": list(state.driver.version),
            "missing": sorted(state.driver.missing),
            "library": getattr(state.driver, "library", ""),
        },
        "python": platform.python_version(),
        "system": platform.platform(),
        "facts": device_info().as_dict(),
    }
    listed = [
        {"name": case.name, "fact": case.fact, "limit_s": case.limit_s}
        for case in load(asked.module).values()
        if not case.is_hidden
    ]
    return PASS, {"device": device, "cases": listed, "reason": "", "stats": stats()}


def load(module: str) -> dict[str, Any]:
    """The cases of a module by name, in the order of its ``IN_ORDER``, or else as they stand there."""
    found = importlib.import_module(module)
    # lazily: the parent imports this module, and never torch
    from gfxgraph.selftest.bench import Case

    values = getattr(found, "IN_ORDER", vars(found).values())
    return {value.name: value for value in values if isinstance(value, Case)}


def enable(asked: argparse.Namespace, settings: dict[str, Any]) -> None:
    gfxgraph.enable(simulate=asked.simulate or None, allow_cuda=asked.allow_cuda, **settings)


def stats() -> dict[str, Any]:
    gc.collect()
    return gfxgraph.stats()


def _no_core_files() -> None:
    """A crash is expected news here, and the core of a GPU process has gigabytes."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

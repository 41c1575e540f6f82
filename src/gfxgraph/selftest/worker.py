"""One case of the self-test in this process, which was started for it and ends with it.

    python -m gfxgraph.selftest.worker JSON

The JSON holds what ``Suite`` asks: ``simulate``, ``allow_cuda``, ``module``, ``case``, ``limit_s``, and the file
``result``. Without a case it describes the device and lists the cases. The result goes to a file, so that nothing
that torch, the runtime or a dying process prints is mistaken for it, and is written before the process ends: the
parent sees an abort at exit as what it is, a case that was right in a process that died.

Exit status: 0 passed, 1 failed, 77 skipped, 2 gfxgraph cannot be used here.
"""

from __future__ import annotations

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
from gfxgraph.hardware.chosen_device import device_info
from gfxgraph.process import process

PASS, FAIL, REFUSED, SKIP = 0, 1, 2, 77
CASES = "gfxgraph.selftest.cases"
DUMP_BEFORE_S = 5.0


def main(asked: dict[str, Any]) -> int:
    """Do what is asked; return the exit status. What a case raises goes on, to be printed, once it is written."""
    faulthandler.enable()
    # Where a hang hangs; the parent kills the process soon after.
    faulthandler.dump_traceback_later(max(asked["limit_s"] - DUMP_BEFORE_S, asked["limit_s"] / 2))
    with suppress(ImportError, OSError, ValueError):
        import resource

        # A crash is expected news here, and the core of a GPU process has gigabytes.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told: dict[str, Any] = {"reason": ""}
    try:
        return _run(asked, told) if asked["case"] else _describe(asked, told)
    finally:
        error = sys.exception()
        if error is not None:
            told["reason"] = f"{type(error).__name__}: {error}"
        gc.collect()
        told["stats"] = gfxgraph.stats()
        files.write(Path(asked["result"]), json.dumps(told, default=str))


def _run(asked: dict[str, Any], told: dict[str, Any]) -> int:
    # lazily: the parent imports this module, and never torch
    from gfxgraph.selftest.bench import Bench, CaseSkipped

    chosen = load(asked["module"])[asked["case"]]
    bench = Bench()
    told["figures"] = bench.figures
    try:
        _enable(asked, chosen.settings)
        chosen.run(bench)
    except CaseSkipped as skipped:
        told["reason"] = str(skipped)
        return SKIP
    found = gfxgraph.stats()
    if found["validation_failures"] and not chosen.may_fall_back:
        told["reason"] = f"{found['validation_failures']} replays differed from eager; eager's results were used"
    elif found["fallback_count"] and not chosen.may_fall_back:
        told["reason"] = f"eager execution stood in for a graph: {found['fallbacks']}"
    return FAIL if told["reason"] else PASS


def _describe(asked: dict[str, Any], told: dict[str, Any]) -> int:
    """The device as the runtime and torch see it, and the cases there are; one small kernel shows it alive."""
    try:
        _enable(asked, {"validate": False})
    except GfxGraphError as error:
        fields = {name: str(value) for name, value in error.fields.items()}
        told["refused"] = {"code": error.code, "fields": fields}
        return REFUSED
    # lazily: the parent imports this module, and never torch
    import torch

    state, driver = process.require(), process.require().driver
    total = int(torch.arange(1000, device="cuda").sum())
    if total != 499500:
        told["reason"] = f"the sum of 0 to 999 on the device was {total}"
        return FAIL
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    told["device"] = {
        "platform": state.platform,
        "name": properties.name,
        "arch": str(getattr(properties, "gcnArchName", "")) or f"sm_{properties.major}{properties.minor}",
        "n_devices": torch.cuda.device_count(),
        "memory_mib": properties.total_memory >> 20,
        "memory_free_mib": torch.cuda.mem_get_info()[0] >> 20,
        "torch": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "driver": driver and {"name": driver.name, "version": driver.version, "missing": sorted(driver.missing)},
        "python": platform.python_version(),
        "system": platform.platform(),
        "facts": device_info().as_dict(),
    }
    cases = load(asked["module"]).values()
    told["cases"] = [{"name": c.name, "fact": c.fact, "limit_s": c.limit_s} for c in cases]
    return PASS


def load(module: str) -> dict[str, Any]:
    """The cases of a module, or of its ``MODULES``, by name, in the order in which they stand there."""
    found = importlib.import_module(module)
    # lazily: the parent imports this module, and never torch
    from gfxgraph.selftest.bench import Case

    modules = getattr(found, "MODULES", (found,))
    return {value.name: value for each in modules for value in vars(each).values() if isinstance(value, Case)}


def _enable(asked: dict[str, Any], settings: dict[str, Any]) -> None:
    gfxgraph.enable(simulate=asked["simulate"] or None, allow_cuda=asked["allow_cuda"], **settings)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

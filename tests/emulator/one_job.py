"""One scenario or experiment of the native self-test in this process; prints one line of JSON.

    rocjitsu --config gfx1030.json -- python one_job.py scenario NAME [KERNELS.so KERNELS.hsaco]
    rocjitsu --config gfx1030.json -- python one_job.py experiment NAME MODE [KERNELS.so KERNELS.hsaco]

With the compiled kernels they are launched by host stub too. What fails raises.
"""

from __future__ import annotations

import json
import sys

from gfxgraph.driver import locate
from gfxgraph.selftest.native import experiments, scenarios
from gfxgraph.selftest.native.hip_calls import HipCalls

kind, name, *rest = sys.argv[1:]
mode = int(rest.pop(0)) if kind == "experiment" else 0
driver = locate("hip")
gpu = HipCalls(driver, *rest)
if kind == "scenario":
    told = {"facts": scenarios.SCENARIOS[name](driver, gpu)}
else:
    told = {"mode": mode, "hip": driver.version, "seen": experiments.perform(driver, gpu, name, mode)}
print(json.dumps({kind: name, **told}), flush=True)

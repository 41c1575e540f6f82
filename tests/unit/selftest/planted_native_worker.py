"""Stands for the worker of the native self-test where there is no HIP: the real one, with jobs that need none.

The cells are those of HIP 7.2.4 but one. Scenario "legacy_stream" ends its process, "child_graphs" raises, and stream
program 1 never ends.
"""

import os
import signal
import time
from pathlib import Path

from gfxgraph import files
from gfxgraph.errors import DriverError
from gfxgraph.selftest.native import native_suite, native_worker

CELLS = files.read_json(Path(native_suite.__file__).parent / "tables" / "7.2.4.json")["cells"]


def perform(job):
    match job["kind"], job["name"]:
        case "identity", _:
            if "PLANTED_NO_GPU" in os.environ:
                raise AssertionError("hipGetDeviceCount returned 100, not 0")
            return {"hip": "7.2.4", "devices": 1, "name": "planted", "arch": "gfx1030", "missing": []}
        case "cell", name:
            return {
                "rule": "refuses 900" if (name, job["mode"]) == ("launch", "relaxed") else CELLS[name][job["mode"]]
            }
        case "scenario", "legacy_stream":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "scenario", "child_graphs":
            raise DriverError("no_device")
        case "streams", "1":
            time.sleep(600)
        case "streams", _:
            return {"outcome": "right"}
    return {}


native_worker.perform = perform
if __name__ == "__main__":
    native_worker.main()

"""2,000 random programs on a GPU: the same generator as tests/property/test_fuzz.py, other seeds.

GFXGRAPH_TEST_OUT=FOLDER pytest tests/gpu/test_fuzz_gpu.py -n 8     # each part leaves a file
python tests/gpu/test_fuzz_gpu.py FOLDER fuzz_h100.json              # puts them together
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "property"))

import pytest  # noqa: E402

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
PROGRAMS, N_PARTS, FIRST_SEED = 2000, 20, 90_000


@pytest.mark.parametrize("part", range(N_PARTS))
@pytest.mark.timeout(280)
def test_programs(part):
    """Captures compute nothing, replays equal eager, nothing falls back without a reason: on the GPU."""
    import fuzz_check
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from test_fuzz import programs

    import gfxgraph

    gfxgraph.enable(allow_cuda=True, validate=False)
    seen = {"part": part, "seed": FIRST_SEED + part, "programs": 0, "disagreements": []}
    began = time.monotonic()

    @seed(FIRST_SEED + part)
    @settings(
        max_examples=PROGRAMS // N_PARTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    @given(programs)
    def run(program):
        seen["programs"] += 1
        try:
            fuzz_check.run(program, "allow_cuda=True")
        except Exception as error:  # noqa: BLE001  (counted and told; the next program runs all the same)
            seen["disagreements"].append(f"{type(error).__name__}: {str(error)[:1500]}\n{program.source()[:3000]}")

    try:
        run()
    finally:
        gfxgraph.disable()
        seen["seconds"] = round(time.monotonic() - began, 1)
        folder = os.environ.get("GFXGRAPH_TEST_OUT")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"part-{part:02}.json").write_text(json.dumps(seen))
    assert not seen["disagreements"], f"{len(seen['disagreements'])} programs; first: {seen['disagreements'][0]}"


def gather(folder: Path) -> dict:
    """One report of all parts."""
    parts = [json.loads(file.read_text()) for file in sorted(folder.glob("part-*.json"))]
    n_run = sum(p["programs"] for p in parts)
    wrong = [text for p in parts for text in p["disagreements"]]
    device = torch.cuda.get_device_name()
    seeds = f"{parts[0]['seed']} to {parts[-1]['seed']}" if parts else "none"
    return {
        "programs": n_run,
        "disagreements": len(wrong),
        "parts_missing": N_PARTS - len(parts),
        "seeds": seeds,
        "texts": wrong[:40],
        "machine": {
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "commit": os.environ.get("BENCH_COMMIT", "unknown"),
        },
        "sentence": (
            f"{n_run:,} random programs (hypothesis seeds {seeds}) on one {device}, torch {torch.__version__}: "
            f"{n_run - len(wrong):,} equal to eager in results, state and random numbers, {len(wrong)} not; "
            f"{N_PARTS - len(parts)} of {N_PARTS} parts did not finish."
        ),
    }


if __name__ == "__main__":
    report = gather(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(report, indent=1) + "\n")
    print(report["sentence"])

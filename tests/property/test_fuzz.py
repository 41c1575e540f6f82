"""Random programs captured through plain torch.cuda.graph: replay equals eager, capture computes nothing.

512 programs under the simulator's CUDA and HIP profiles, 2,048 with GFXGRAPH_TEST_DEPTH=4; tests/gpu/test_fuzz_gpu.py
runs as many on a GPU. A failure is shrunk and printed as a script that runs as it stands.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fuzz_check  # noqa: E402
import fuzz_grammar
import fuzz_statements  # noqa: F401  (registers the kinds of statements)
import pytest
import torch
from fuzz_grammar import WEIGHTS, External, Gene, Program
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import gfxgraph
from tests.conftest import DEPTH

PROGRAMS = int(512 * DEPTH)
# (profile, how many parts of the programs): parts are separate tests, so that they spread over cores.
PARTS = (("cuda", 5), ("hip", 7), ("hip-6.4", 2), ("hip-7.14", 2))
N_PARTS = sum(n for _, n in PARTS)
MAX_NUMBER = 2**62

_kinds = st.sampled_from([kind for kind, weight in WEIGHTS.items() for _ in range(weight)])
_genes = st.builds(Gene, _kinds, st.integers(0, MAX_NUMBER))
_shapes = st.lists(st.sampled_from(fuzz_grammar.SIZES), max_size=3).map(tuple)
_externals = st.builds(
    External,
    _shapes,
    st.sampled_from(fuzz_grammar.DTYPES),
    st.integers(0, 2),
    st.sampled_from(fuzz_grammar.PLACES),
    st.sampled_from((None, None, None, None, 0, 1)),
)
_bodies = st.tuples(
    st.lists(_genes, min_size=1, max_size=24), st.sampled_from((0, 0, 0, 1)), st.lists(_genes, max_size=8)
).map(lambda t: (tuple(t[0]), tuple(t[2])) if t[1] else (tuple(t[0]),))
programs = st.builds(
    Program,
    st.lists(_externals, min_size=1, max_size=5).map(tuple),
    _bodies,
    st.sampled_from(("", "", "no_grad", "inference_mode")),
    st.booleans(),
    st.one_of(st.just(-1), st.integers(0, MAX_NUMBER)),
    st.one_of(*[st.none()] * 7, st.integers(1, 12)),
)


@pytest.fixture(params=[(profile, part) for profile, n in PARTS for part in range(n)], ids=lambda p: f"{p[0]}-{p[1]}")
def simulated(request):
    """One part of the programs, on one simulated platform; everything put back afterwards.

    As in a process that has compiled nothing: in others a capture replaces fewer functions, and pins more numbers.
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        torch._dynamo.reset()
        frames.FRAME_COUNTER = 0
    if torch.cuda.is_available():
        pytest.skip("the simulator stands in only where there is no GPU")
    profile, part = request.param
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gfxgraph.enable(simulate=profile, validate=False)
    try:
        yield profile, 1000 * [p for p, _ in PARTS].index(profile) + part
    finally:
        gfxgraph.disable()
        fuzz_check.forget_device()
        torch.set_num_threads(threads)


def test_programs(simulated):
    """Captures compute nothing, replays equal eager to the bit, nothing falls back without a reason."""
    profile, number = simulated
    arguments = f"simulate={profile!r}"

    @seed(number)
    @settings(
        max_examples=PROGRAMS // N_PARTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(programs)
    def run(program):
        try:
            fuzz_check.run(program, arguments)
        except Exception:
            # What failed may have left the simulated device in any state.
            gfxgraph.disable()
            fuzz_check.forget_device()
            gfxgraph.enable(simulate=profile, validate=False)
            raise

    run()

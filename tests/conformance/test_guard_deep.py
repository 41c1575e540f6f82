"""Guard tier 3: one byte outside an allocation, on either side, is found, with tensor, replay and kernel."""

from __future__ import annotations

import ctypes
import gc
import inspect
import subprocess

import pytest
import torch

import gfxgraph
import gfxgraph_simulator as simulator
from gfxgraph.errors import GfxGraphFault
from gfxgraph.guard import redzone_pool
from tests.conformance.guarding import PROFILES, graph_of, guarded, line_of, triton, write_bytes

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the simulator stands in for the only card there is"
)
HAS_ZONES = "no_split" in inspect.signature(torch.cuda.MemPool.__init__).parameters
with_zones = pytest.mark.skipif(not HAS_ZONES, reason="pools that split no segments came with torch 2.10")


@pytest.fixture(params=PROFILES)
def deep(request, tmp_path, monkeypatch):
    """Tier 3."""
    with guarded(request.param, 3, tmp_path, monkeypatch) as sim:
        yield sim


def overrunning(n):
    """A graph whose kernel writes ``amount`` bytes past, or before, its tensor of ``n`` floats."""
    x = torch.arange(float(n), device="cuda")
    amount = torch.zeros(1, dtype=torch.int64, device="cuda")

    def body():
        a = x * 2
        triton(lambda k, o: write_bytes(o, int(k[0])), amount, a)
        return a + 1

    return *graph_of(body), amount, body.__code__


OVERRUN = """\
red_zone_overwritten: a kernel wrote outside its buffer
  what: {n} bytes changed around output of aten::mul, [{size}] float32, {nbytes}, allocated at {made}; the nearest \
at byte {offset}, where 0 to {last} are its own; first seen after replay {replay}
  why:  node 1 (triton_kernel), launched by a call outside torch at {made} to {after}, wrote them; without red zones \
it would have overwritten another tensor
  do:   check the sizes, offsets and masks of the stores in that kernel
  more: gfxgraph explain red_zone_overwritten"""


@with_zones
@pytest.mark.parametrize(
    ("n_bytes", "size", "nbytes"),
    [(1, 8, "32 bytes"), (-1, 8, "32 bytes"), (70, 128, "512 bytes"), (1, 524288, "2 MiB")],
)
def test_one_byte_on_either_side_is_found(deep, n_bytes, size, nbytes):
    """Tensors that fill their block and such that do not; then good replays again."""
    graph, result, amount, code = overrunning(size)
    graph.replay()
    assert result[:2].tolist() == [1.0, 3.0]
    amount.fill_(n_bytes)
    with pytest.raises(GfxGraphFault) as caught:
        graph.replay()
    said = caught.value.text("en").replace("`a`", "output of aten::mul")
    assert said == OVERRUN.format(
        n=abs(n_bytes), size=size, nbytes=nbytes, made=line_of(code, 1), after=line_of(code, 3),
        offset=size * 4 if n_bytes > 0 else -1, last=size * 4 - 1, replay=2,
    )  # fmt: skip
    amount.zero_()
    graph.replay()
    amount.fill_(n_bytes)
    with pytest.raises(GfxGraphFault, match="first seen after replay 2"):
        graph.replay()


@with_zones
def test_state_is_as_after_the_replay_that_overran(deep):
    """Looking for the node runs the graph again; what it counts is counted once."""
    x = torch.ones(4, device="cuda")
    amount = torch.zeros(1, dtype=torch.int64, device="cuda")
    count = torch.zeros((), device="cuda")

    def body():
        count.add_(1)
        a = x * count
        triton(lambda k, o: write_bytes(o, int(k[0])), amount, a)
        return a + torch.rand(4, device="cuda")

    torch.cuda.manual_seed(3)
    graph, _ = graph_of(body)
    graph.replay()
    amount.fill_(1)
    with pytest.raises(GfxGraphFault):
        graph.replay()
    assert count.item() == 2.0
    amount.zero_()
    graph.replay()
    assert count.item() == 3.0


@with_zones
def test_memory_that_an_operation_takes_for_itself_is_no_overrun(deep):
    """Intermediates, several sizes, views, in-place results and shared pools: nothing is reported."""
    x = torch.randn(32, 32, device="cuda")
    pool = torch.cuda.graph_pool_handle()

    def body(n):
        y = torch.nn.functional.layer_norm(x[:n] @ x, (32,))
        z = torch.softmax(y, -1)
        z[:, ::2].add_(1)
        return torch.cat([y, z.sort(0).values]), z.view(-1)[: n // 2]

    expected = {n: [t.clone() for t in body(n)] for n in (1, 7)}
    graphs = {n: graph_of(lambda n=n: body(n), pool=pool) for n in expected}
    for n, (graph, results) in graphs.items():
        graph.replay()
        for mine, eager in zip(results, expected[n]):
            torch.testing.assert_close(mine, eager)
    assert gfxgraph.stats()["guard_faults"] == 0
    assert not gfxgraph.stats()["events"]


@with_zones
def test_every_allocation_of_the_graph_has_zones(deep):
    """Also those that no operation returned."""
    graph, *_ = overrunning(8)
    zones = graph._guard.zones
    addresses = {address for address, _ in zones.pool.segments()}
    assert {zone.owner.address for zone in zones.zones} == addresses and len(addresses) == 2
    assert len(zones.zones) == 2 * len(addresses)


@with_zones
def test_pools_are_given_back_with_their_graphs(deep):
    """The pool object outlives the graph, and goes before the next capture."""
    gc.collect()  # graphs that errors of other tests still hold
    redzone_pool.release_unused()
    assert not redzone_pool._pools
    graph, result, _amount, _ = overrunning(8)
    graph.replay()
    del graph, result
    other, *_ = overrunning(8)
    assert len(redzone_pool._pools) == 1
    assert not deep.crashes
    del other


def test_a_torch_without_unsplit_pools_is_told_apart(tmp_path, monkeypatch):
    """The capture goes on without red zones, and says so."""
    real = torch.cuda.MemPool.__init__

    def older(self, allocator=None, use_on_oom=False):
        real(self, allocator, use_on_oom)

    with guarded("cuda", 3, tmp_path, monkeypatch):
        if HAS_ZONES:
            monkeypatch.setattr(torch.cuda.MemPool, "__init__", older)
        graph, result, _amount, _ = overrunning(8)
        graph.replay()
        assert result[0].item() == 1.0
        assert [e["kind"] for e in gfxgraph.stats()["events"]] == ["guard_without_red_zones"]


def test_a_red_zone_of_its_own_finds_both_sides(deep):
    """RedZone outside of graphs: armed again after each finding."""
    zone = gfxgraph.RedZone((4, 8), torch.float16, name="scores")
    zone.tensor.fill_(3)
    zone.check()
    for n_bytes, offset in ((1, 64), (-1, -1)):
        simulator.launch_opaque("k", lambda t, n=n_bytes: write_bytes(t, n), zone.tensor)
        with pytest.raises(GfxGraphFault, match=f"`scores`.*the nearest at byte {offset}, where 0 to 63"):
            zone.check()
        zone.check()
    with pytest.raises(GfxGraphFault, match="buffer_overrun"), gfxgraph.RedZone(8, torch.uint8) as tensor:
        simulator.launch_opaque("k", lambda t: write_bytes(t, 3), tensor)


FAKE_RUNTIME = """
#include <stdlib.h>
static int mode = 0, seen = -1;
int hipMalloc(void **out, size_t n) { seen = mode; *out = malloc(n); return *out ? 0 : 2; }
int hipFree(void *p) { free(p); return 0; }
int hipThreadExchangeStreamCaptureMode(int *m) { int was = mode; mode = *m; *m = was; return 0; }
int fake_seen(void) { return seen; }
int fake_mode(void) { return mode; }
"""


def test_the_allocator_is_built_and_leaves_room_on_both_sides(tmp_path, monkeypatch):
    """Compiled with g++ into the state directory once; over a stand-in for libamdhip64."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = redzone_pool.build()
    assert path.is_relative_to(tmp_path / "state" / "gfxgraph") and redzone_pool.build() == path
    (tmp_path / "fake.c").write_text(FAKE_RUNTIME)
    library = tmp_path / "libfake.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", library, tmp_path / "fake.c"], check=True)
    zones, fake = ctypes.CDLL(str(path)), ctypes.CDLL(str(library))
    names = [name.encode() for name in redzone_pool._CALLS["hip"]]
    assert zones.gfxgraph_zone_open(b"/nowhere.so", *names) == 1
    assert zones.gfxgraph_zone_open(str(library).encode(), b"noSuchCall", *names[1:]) == 2
    assert zones.gfxgraph_zone_open(str(library).encode(), *names) == 0
    assert zones.gfxgraph_zone_nbytes() == redzone_pool.ZONE_NBYTES
    zones.gfxgraph_zone_alloc.restype = ctypes.c_void_p
    address = zones.gfxgraph_zone_alloc(ctypes.c_ssize_t(4096), 0, None)
    assert (fake.fake_seen(), fake.fake_mode()) == (2, 0)  # relaxed for the call, as before after it
    size = redzone_pool.ZONE_NBYTES
    ctypes.memset(address - size, 0xA5, 4096 + 2 * size)  # all of it is ours
    zones.gfxgraph_zone_free(ctypes.c_void_p(address), ctypes.c_ssize_t(4096), 0, None)

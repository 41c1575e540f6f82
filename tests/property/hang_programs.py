"""Programs that hang, or only look like it, and what their user has to see: cases for hangs.py.

Each program runs below ``gfxgraph run --watch=1`` on the simulator, in a terminal. ``at_hang()`` marks the moment from
which the time to the report is counted. Programs that go on afterwards print "right" if their results are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT_S = 1.0


@dataclass(frozen=True)
class Case:
    """One program, and what has to come out of it.

    Args:
        says: what must be there, as patterns.
        never: what must not be there.
        status: the exit status; None for a program that has to be ended.
        options: for ``gfxgraph run``, in the place of ``--watch=1``.
        n_ranks: processes with gloo between them.
        send: what is sent to the program after so many seconds of hanging: a signal's name, "stop SECONDS" or "ctrl-c".
        within_s: how long after the limit the report may come; None where none is due.
    """

    name: str
    body: str
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    status: int | None = 0
    options: tuple[str, ...] = (f"--watch={LIMIT_S:g}",)
    profile: str = "cuda"
    n_ranks: int = 1
    send: tuple[float, str] | None = None
    within_s: float | None = 2.0
    environment: dict[str, str] = field(default_factory=dict)
    shell: str = ""


ALARM = "capture_hang|replay_hang|Traceback|Exception in thread"
PRELUDE = """\
import sys, time, threading, os, torch
x = torch.ones(4, device="cuda")
def at_hang():
    os.write(2, b"AT_HANG\\n")
def captured(body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return graph, out
def right(ok):
    print("right" if ok else "WRONG", flush=True)
def opaque(fn, *tensors):
    from gfxgraph import simulator
    simulator.launch_opaque("spins", fn, *tensors)
captured(lambda: x.cos() + 1)[0].replay()  # what takes long the first time
torch.cuda.synchronize()
os.write(2, b"READY\\n")
"""
OF_RANKS = (
    PRELUDE
    + """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
dist.barrier()
os.write(2, b"READY\\n")
time.sleep(0.5)
def reduced(t, group=None):
    dist.all_reduce(t, group=group)
    return t
"""
)

CASES = [
    # -- captures -----------------------------------------------------------------------------------------------
    Case(
        "a capture waits, then goes on",
        """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        (r"capture_hang: ", r"begun at \S*prog.py:\d+", r"thread MainThread", r"time\.sleep\(2\.5\)", "right"),
        (r"capture_hang.*(?s:.)*capture_hang: a capture", "WRONG"),
    ),
    Case(
        "a capture waits for a lock that a thread holds, ended by Ctrl-C",
        """
lock = threading.Lock()
def holder():
    with lock:
        time.sleep(1000)
threading.Thread(target=holder, name="the-holder", daemon=True).start()
time.sleep(0.1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
    at_hang()
    lock.acquire()
""",
        ("capture_hang: ", r"lock\.acquire\(\)", "thread the-holder", r"time\.sleep\(1000\)", "KeyboardInterrupt"),
        status=130,
        send=(2.5, "ctrl-c"),
    ),
    Case(
        "a loop in Python inside a capture, ended by SIGTERM",
        """
def spins():
    while True:
        pass
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    spins()
""",
        ("capture_hang: ", r"in spins"),
        status=143,
        send=(2.5, "SIGTERM"),
    ),
    Case(
        "a capture in a worker thread waits, and the main thread joins it",
        """
def work():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        y = x + 1
        at_hang()
        time.sleep(2.5)
    graph.replay(); torch.cuda.synchronize()
    right(y.tolist() == [2.0] * 4)
thread = threading.Thread(target=work, name="capturer")
thread.start()
thread.join()
""",
        ("capture_hang: ", r"capture_hang(?s:.)*thread capturer(?s:.)*thread MainThread", "right"),
    ),
    Case(
        "three captures wait, one after the other: three reports",
        """
for i in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        at_hang() if not i else None
        time.sleep(1.8)
    graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        (r"(capture_hang: a capture(?s:.)*){3}", "right"),
    ),
    Case(
        "a capture and a replay of another thread wait at once: both are reported",
        """
def late(t):
    time.sleep(2.8)
def body():
    y = x + 1
    opaque(late, y)
    return y
graph, y = captured(body)
thread = threading.Thread(target=graph.replay, name="replayer")
thread.start()
with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
    z = x + 1
    at_hang()
    time.sleep(2.8)
thread.join()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "replay_hang: ", "thread replayer", "right"),
    ),
    Case(
        "a callable's capture",
        """
import gfxgraph
def step(t):
    if torch.cuda.is_current_stream_capturing():
        at_hang()
        time.sleep(2.5)
    return t + 1
step = torch._dynamo.disable(step)
fast = gfxgraph.graphed(step, assume_pure=True)
right(fast(x).tolist() == [2.0] * 4 and fast(x).tolist() == [2.0] * 4)
""",
        ("capture_hang: ", r"time\.sleep\(2\.5\)", "right"),
        ("WRONG",),
    ),
    # -- replays ------------------------------------------------------------------------------------------------
    Case(
        "a node of a graph never ends",
        """
graph, y = captured(lambda: (x + 1).sin())
at_hang()
graph.replay()
torch.cuda.synchronize()
print("not reached")
""",
        ("replay_hang: ", r"prog\.py:\d+ \(replay 1\)", r"--guard 2 names it", r"prog\.py\", line \d+, in <module>"),
        ("not reached",),
        status=143,
        send=(2.5, "SIGTERM"),  # no interrupt reaches Python below the wait for a device
        profile="cuda+hang=aten::sin",
    ),
    Case(
        "the launch of that node returns, as a GPU's does, and the wait for it is where the program stands",
        """
graph, y = captured(lambda: (x + 1).sin())
graph.replay()
print("launched", flush=True)
at_hang()
torch.cuda.synchronize()
print("not reached")
""",
        ("launched", "replay_hang: ", r"torch\.cuda\.synchronize\(\)"),
        ("not reached",),
        status=143,
        send=(2.5, "SIGTERM"),  # no interrupt reaches Python below the wait for a device
        profile="cuda+hang=aten::sin",
    ),
    Case(
        "the same below --guard 2: the node is named, by the program and by its supervisor, which ends it",
        """
graph, y = captured(lambda: (x + 1).sin())
at_hang()
graph.replay()
torch.cuda.synchronize()
print("not reached")
""",
        ("replay_hang: ", r"last node begun: 1 \(.*sin.*prog\.py:\d+"),
        ("not reached",),
        status=143,
        options=("--watch=1", "--guard=2", "--guard-limit=2.5"),
        profile="cuda+hang=aten::sin",
    ),
    Case(
        "a host step waits at the replay",
        """
@torch.library.custom_op("hangs::waits", mutates_args=())
def waits(t: torch.Tensor) -> torch.Tensor:
    if t.cpu().sum() > 100:
        at_hang()
        time.sleep(2.5)
    return t + 1
@waits.register_fake
def _(t):
    return torch.empty_like(t)
waits(x)
graph, y = captured(lambda: waits(x * 2))
graph.replay()
x.fill_(50)
graph.replay()
right(y.tolist() == [101.0] * 4)
""",
        ("replay_hang: ", r"time\.sleep\(2\.5\)", r"replay 2", "right"),
    ),
    Case(
        "a worker of an engine: the 20th replay of its queue",
        """
import queue
calls = [0]
def late(t):
    calls[0] += 1
    if calls[0] == 20:
        at_hang()
        time.sleep(2.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
graph, y = captured(body)
work, results = queue.Queue(), queue.Queue()
def loop():
    while work.get():
        graph.replay()
        results.put(y.tolist())
threading.Thread(target=loop, name="engine-loop", daemon=True).start()
for _ in range(30):
    work.put(1)
right(all(results.get() == [2.0] * 4 for _ in range(30)))
""",
        (r"replay_hang: ", r"\(replay 20\)", r"\nthread engine-loop(?s:.)*thread MainThread", "right"),
    ),
    Case(
        "a callable's later replay, in a generation loop",
        """
import gfxgraph
calls = [0]
def late(t):
    calls[0] += 1
    if calls[0] == 12:
        at_hang()
        time.sleep(2.5)
def step(t):
    y = t + 1
    opaque(late, y)
    return y
fast = gfxgraph.graphed(step, assume_pure=True)
t = x
for _ in range(20):
    t = fast(t)
right(t.tolist() == [21.0] * 4)
""",
        (r"replay_hang: ", r"in <module>\s+t = fast\(t\)", "right"),
    ),
    Case(
        "a backward pass of make_graphed_callables, in autograd's thread",
        """
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t * 2
    @staticmethod
    def backward(ctx, g):
        g = g * 2
        opaque(late, g)
        return g
calls = [0]
def late(t):
    calls[0] += 1
    if calls[0] == 8:
        at_hang()
        time.sleep(2.5)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(4, device="cuda"))
    def forward(self, t):
        return Late.apply(t * self.w)
net = torch.cuda.make_graphed_callables(Net(), (x.clone(),))
for _ in range(8):
    net.w.grad = None
    net(x).sum().backward()
right(net.w.grad.tolist() == [2.0] * 4)
""",
        ("replay_hang: ", "right"),
    ),
    Case(
        "a graph that waits for an event nobody records goes on, as on a GPU",
        """
event = torch.cuda.Event(external=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    event.wait()
    y = x + 1
graph.replay()
torch.cuda.synchronize()
time.sleep(1.5)
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        within_s=None,
    ),
    # -- no alarms ----------------------------------------------------------------------------------------------
    Case(
        "long captures back to back, with a finished replay before them",
        """
graph, y = captured(lambda: x + 1)
graph.replay()
for _ in range(4):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        z = x + 1
        time.sleep(0.8)
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        within_s=None,
    ),
    Case(
        "slow replays, none of them past the limit, from two threads",
        """
def late(t):
    time.sleep(0.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
graphs = [captured(body) for _ in range(2)]
threads = [threading.Thread(target=lambda g=g: [g.replay() for _ in range(4)]) for g, _ in graphs]
[t.start() for t in threads]
[t.join() for t in threads]
right(all(y.tolist() == [2.0] * 4 for _, y in graphs))
""",
        ("right",),
        (ALARM,),
        within_s=None,
    ),
    Case(
        "stopped in a capture (Ctrl-Z, a debugger) and continued",
        """
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(0.3)
    for _ in range(20):
        time.sleep(0.01)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        send=(0.1, "stop 3"),
        within_s=None,
    ),
    Case(
        "the wall clock jumps by a day inside a capture and a replay",
        """
real, jump = time.time, [0.0]
time.time = lambda: real() + jump[0]
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    jump[0] = 86400.0
    y = x + 1
    time.sleep(0.4)
jump[0] = -86400.0
graph.replay()
time.sleep(0.6)
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        within_s=None,
    ),
    Case(
        "3,000 replays while four processes take the cores",
        """
import subprocess
busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(4)]
graph, y = captured(lambda: x + 1)
for _ in range(3000):
    graph.replay()
torch.cuda.synchronize()
[b.kill() for b in busy]
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        within_s=None,
    ),
    Case(
        "a program that ends well with a status of its own",
        """
graph, y = captured(lambda: x + 1)
graph.replay()
right(y.tolist() == [2.0] * 4)
sys.exit(7)
""",
        (r"\A\s*right\s*\Z",),
        status=7,
        within_s=None,
    ),
    # -- limits -------------------------------------------------------------------------------------------------
    Case(
        "a limit of a hundred years",
        "graph, y = captured(lambda: x + 1); graph.replay(); right(y.tolist() == [2.0] * 4)",
        ("right",),
        (ALARM,),
        options=("--watch=1e308",),
        within_s=None,
    ),
    Case(
        "a limit of a nanosecond: a usage error, or no report of what takes its usual time",
        "graph, y = captured(lambda: x + 1); graph.replay(); right(y.tolist() == [2.0] * 4)",
        ("right|bad_usage",),
        ("Traceback", "Exception in thread"),
        status=None,
        options=("--watch=1e-9",),
        within_s=None,
    ),
    Case(
        "no limit",
        """
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    time.sleep(1.6)
right([t.name for t in threading.enumerate()] == ["MainThread"])
""",
        ("right",),
        (ALARM,),
        options=("--watch=0",),
        within_s=None,
    ),
    *[
        Case(
            f"--watch={word}",
            "print('started')",
            ("bad_usage: ", "--watch"),
            ("started", "Traceback"),
            status=2,
            options=(f"--watch={word}",),
            within_s=None,
        )
        for word in ("-1", "soon", "nan", "inf")
    ],
    Case(
        "GFXGRAPH_WATCH=soon",
        "print('started')",
        ("GFXGRAPH_WATCH", "soon"),
        ("started", "Traceback"),
        status=2,
        options=(),
        environment={"GFXGRAPH_WATCH": "soon"},
        within_s=None,
    ),
    *[
        Case(
            f"known hangs, {asked}: the watch is {'on, at the limit of the defect table' if expected else 'off'}",
            f"""
from gfxgraph.process import process
watch = process.require().hang_watch
right((watch.limit_s if watch is not None else None) == {expected})
""",
            ("right",),
            (ALARM,),
            options=options,
            environment={"GFXGRAPH_ENVIRONMENT": "{folder}/environment.json"},
            within_s=None,
        )
        for asked, options, expected in (("nothing asked", (), 60.0), ("--watch=0", ("--watch=0",), None))
    ],
    # -- processes ----------------------------------------------------------------------------------------------
    Case(
        "a forked child that captures nothing; the parent waits in a capture afterwards",
        """
pid = os.fork()
if not pid:
    time.sleep(1.6)
    os._exit(0)
os.waitpid(pid, 0)
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        (r"capture_hang: a(?s:.)*capture_hang: a",),
    ),
    Case(
        "a spawned worker hangs: the report says which process",
        """
import multiprocessing
def work():
    print("worker is", os.getpid(), flush=True)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = x + 1
        at_hang()
        time.sleep(2.5)
    graph.replay()
    right(y.tolist() == [2.0] * 4)
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
""",
        (r"worker is (\d+)(?s:.)*capture_hang: (?s:.)*\b\1\b", "in work", "right"),
    ),
    Case(
        "exec in the program: the new one is watched",
        """
if len(sys.argv) < 2:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
    ),
    Case(
        "a run inside a run",
        """
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        (r"capture_hang: a(?s:.)*capture_hang: a",),
        options=("--watch=1", "--", "{python}", "-m", "gfxgraph", "run"),
    ),
    Case(
        "a run inside a run that asks for no watch",
        """
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    time.sleep(1.6)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        (ALARM,),
        options=("--watch=1", "--", "{python}", "-m", "gfxgraph", "run", "--watch=0"),
        within_s=None,
    ),
    Case(
        "stdout and stderr replaced by objects that refuse, the terminal still there",
        """
class Refuses:
    encoding = "ascii"
    def write(self, text):
        raise OSError("refused")
    def flush(self):
        raise OSError("refused")
    def isatty(self):
        return True
out, sys.stdout = sys.stdout, Refuses()
err, sys.stderr = sys.stderr, Refuses()
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
sys.stdout, sys.stderr = out, err
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        ("Traceback",),
    ),
    Case(
        "a handler of the program's that raises",
        """
import logging
class Bad(logging.Handler):
    def emit(self, record):
        raise ValueError("bad handler")
logging.getLogger("gfxgraph").addHandler(Bad())
for i in range(2):
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = x + 1
        at_hang() if not i else None
        time.sleep(1.8)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        (r"(capture_hang: a capture(?s:.)*){2}", "right"),
        ("Exception in thread",),
    ),
    Case(
        "standard error is a full disk",
        """
sys.stderr.flush()
full = os.open("/dev/full", os.O_WRONLY)
keep = os.dup(2)
at_hang()
os.dup2(full, 2)
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    time.sleep(2.0)
graph.replay()
os.dup2(keep, 2)
for _ in range(1):
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = x + 1
        time.sleep(2.0)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        ("Exception in thread",),
        within_s=6.0,
    ),
    Case(
        "standard error is closed",
        """
keep = os.dup(2)
at_hang()
os.close(2)
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    time.sleep(2.0)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("right",),
        ("Exception in thread",),
        within_s=None,
    ),
    Case(
        "no folder to write to: HOME and the temporary folder are read-only",
        """
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = x + 1
    at_hang()
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        environment={"HOME": "/proc/1", "XDG_STATE_HOME": "/proc/1", "TMPDIR": "/proc/1"},
    ),
    Case(
        "the watch's question to the device raises what nobody expects",
        """
graph, y = captured(lambda: x + 1)
query = torch.cuda.Event.query
from gfxgraph.capture.replay import hang_watch
n = [0]
is_past = hang_watch._is_past
def bad(event):
    if n[0] < 3:
        n[0] += 1
        raise LookupError("the device is odd")
    return is_past(event)
hang_watch._is_past = bad
graph.replay()
time.sleep(1.0)
with torch.cuda.graph(graph2 := torch.cuda.CUDAGraph()):
    z = x + 1
    at_hang()
    time.sleep(2.5)
right(y.tolist() == [2.0] * 4)
""",
        ("capture_hang: ", "right"),
        ("Exception in thread",),
    ),
    # -- the end of a program -----------------------------------------------------------------------------------
    Case(
        "a replay that waits in a thread for which the interpreter waits at its end",
        """
def late(t):
    at_hang()
    time.sleep(2.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
graph, y = captured(body)
def work():
    graph.replay()
    right(y.tolist() == [2.0] * 4)
threading.Thread(target=work, name="last").start()
""",
        ("replay_hang: ", "thread last", "right"),
    ),
    Case(
        "a replay that waits in an atexit handler",
        """
import atexit
def late(t):
    at_hang()
    time.sleep(2.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
graph, y = captured(body)
@atexit.register
def last():
    graph.replay()
    right(y.tolist() == [2.0] * 4)
""",
        ("replay_hang: ", "in last", "right"),
    ),
    # -- ranks --------------------------------------------------------------------------------------------------
    Case(
        "one of three ranks does not come to its third replay",
        """
graph, y = captured(lambda: reduced(x + RANK))
def load():
    at_hang()
    time.sleep(4)
for i in range(3):
    if RANK == 2 and i == 2:
        load()
    graph.replay()
right(y.tolist() == [6.0] * 4)
""",
        (
            r"rank 0, 1: waits in replay 3|rank 0 waits in replay 3(?s:.)*rank 1 waits in replay 3",
            r"rank 2:? [^\n]*prog\.py:\d+ in load",
            "(right(?s:.)*){3}",
        ),
        ("does not answer", "Exception in thread"),
        n_ranks=3,
        within_s=3.0,
    ),
    Case(
        "one of two ranks does not come to its first replay, for longer than the limit",
        """
graph, y = captured(lambda: reduced(x + RANK))
def load():
    at_hang()
    time.sleep(4)
if RANK == 1:
    load()
graph.replay()
right(y.tolist() == [3.0] * 4)
""",
        (r"rank 0:? waits in replay 1(?s:.)*rank 1:? [^\n]*prog\.py:\d+ in load", "(right(?s:.)*){2}"),
        ("does not answer", "Exception in thread"),
        n_ranks=2,
        within_s=3.0,
    ),
    Case(
        "a capture of one rank waits; the report says where the other is",
        """
if RANK == 1:
    time.sleep(0.2)
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    y = reduced(x + RANK)
    if RANK == 1:
        at_hang()
        time.sleep(2.5)
graph.replay()
right(y.tolist() == [3.0] * 4)
""",
        (
            r"capture_hang: (?s:.)*rank 0:? waits in replay 1(?s:.)*rank 1:? captures,? since \S*prog\.py:\d+",
            "(right(?s:.)*){2}",
        ),
        ("does not answer",),
        n_ranks=2,
        within_s=3.0,
    ),
    Case(
        "one of two ranks dies, the one with the store",
        """
graph, y = captured(lambda: reduced(x + RANK))
graph.replay()
if RANK == 0:
    time.sleep(0.5)
    at_hang()
    os._exit(3)
def late(t):
    time.sleep(2.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
alone, z = captured(body)
time.sleep(0.6)
alone.replay()
right(z.tolist() == [2.0] * 4)
os._exit(0)
""",
        ("replay_hang: ", "thread MainThread", "in late", "right"),
        ("Exception in thread", "Traceback"),
        n_ranks=2,
        status=3,
        within_s=5.0,
    ),
    Case(
        "one of two ranks dies, the other waits",
        """
graph, y = captured(lambda: reduced(x + RANK))
graph.replay()
if RANK == 1:
    at_hang()
    os._exit(3)
def late(t):
    time.sleep(3.5)
def body():
    y = x + 1
    opaque(late, y)
    return y
alone, z = captured(body)
alone.replay()
right(z.tolist() == [2.0] * 4)
os._exit(0)
""",
        ("replay_hang: ", r"rank 1:? does not answer", "right"),
        ("Exception in thread", "Traceback"),
        n_ranks=2,
        status=3,
        within_s=5.0,
    ),
    Case(
        "a slow rank: half the limit later at each step, with a first replay after more than the limit",
        """
graph, y = captured(lambda: reduced(x + RANK))
if RANK:
    time.sleep(0.7)
for _ in range(3):
    graph.replay()
    torch.cuda.synchronize()
    time.sleep(0.5 * RANK)
right(y.tolist() == [3.0] * 4)
""",
        ("(right(?s:.)*){2}",),
        (ALARM,),
        n_ranks=2,
        within_s=None,
    ),
    Case(
        "two groups of two ranks each, whose graphs differ by right, at different times",
        """
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = RANK // 2
w = torch.ones(4, device="cuda")
graph, y = captured(lambda: reduced(x * 2 + RANK if mine else (x + RANK).abs() * w, groups[mine]))
if mine:
    time.sleep(2.5)
graph.replay()
right(y.tolist() == [[3.0] * 4, [9.0] * 4][mine])
""",
        ("(right(?s:.)*){4}",),
        (ALARM,),
        n_ranks=4,
        within_s=None,
    ),
    Case(
        "a pipeline: one rank sends what the other receives",
        """
t = torch.zeros(4, device="cuda")
def stage():
    if RANK == 0:
        dist.send(x + 1, 1)
        return x
    dist.recv(t, 0)
    return t * 2
graph, y = captured(stage)
for _ in range(3):
    graph.replay()
time.sleep(1.5)
right(y.tolist() == [[1.0] * 4, [4.0] * 4][RANK])
""",
        ("(right(?s:.)*){2}",),
        (ALARM,),
        n_ranks=2,
        within_s=None,
    ),
    Case(
        "ranks that end while another is still asked",
        """
graph, y = captured(lambda: reduced(x + RANK))
graph.replay()
right(y.tolist() == [3.0] * 4)
def late(t):
    at_hang()
    time.sleep(1.4)
def body():
    z = x + 1
    opaque(late, z)
    return z
if RANK == 0:
    alone, z = captured(body)
    alone.replay()
""",
        ("(right(?s:.)*){2}", "replay_hang"),
        ("Exception in thread", "terminate called", "Traceback"),
        n_ranks=2,
        within_s=3.0,
    ),
]

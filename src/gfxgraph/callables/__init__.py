"""callables: graphed functions and modules; what a user calls, captured per signature and replayed.

Enters: functions, modules, their arguments.
Stays out: engines, the command line.

The room is not called ``graphed``: importing a package of that name would put it over the function of that
name in ``gfxgraph``.

In the order of a cold call:

    api.py        graphed(): what users call, and its options
    type_hints.py  its signature, for type checkers
    graphed.py    Graphed: what users hold, and the path of one call
    graphed_module.py  of a module: a module with the same state, whose call is a Graphed's
    signature.py  arguments and results as trees; the cache key of a call
    worlds.py     what its calls read besides their arguments, and which are one graph (trace/)
    captured.py   one captured callable: trace, warm-up, record, replay, eager
    arena.py      pool, capture stream, cap, eviction; one capture, one replay; what a graph reads and writes
    buffers.py    static inputs, results and who owns their memory, and the copies between
    fast_path.py  the common call, generated for one signature
    joined_launch.py  a call as one launch, with its copies as nodes of the graph exec

and apart from that:

    buckets.py    dynamic dims, and which bucket a call goes to
    adaptive.py   eager or graph, by timings
    explain_calls.py  ``explain()`` of a callable
    agreed.py     a function with collectives, captured by every rank at the same call
    distributed.py  modules that communicate around each call: left as they are, by name
    states.py     the worlds of training steps and of functions with collectives
    python_reads.py  what a training step, or a function with collectives, reads in Python

and subpackages: trace/ (Dynamo: what a call reads), pieces/ (graphs from Dynamo and Inductor),
padding/, control/, training/.
"""

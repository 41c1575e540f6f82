"""callables: graphed functions and modules; what a user calls, captured per signature and replayed.

Enters: functions, modules, their arguments.
Stays out: engines, the command line.

The room is not called ``graphed``: importing a package of that name would put it over the function of that
name in ``gfxgraph`` (docs/decisions/0106).

In the order in which a cold call goes through them:

    api.py        graphed(): what users call; options.py: what they asked for; typed.py: for type checkers
    graphed.py    Graphed: what users hold, and the way of one call
    signature.py  arguments and results as trees; what makes two calls the same; one call, understood
    arena.py      pool, capture stream, cap, eviction, report
    worlds.py     what its calls read besides their arguments, and which are one graph (trace/);
                  reads.py: the same where the caller promises it
    capturing.py  its captures: warm-up, room, attempts; effects.py: what a warm-up wrote and drew
    entry.py      one captured signature: its graphs, one replay; the routes of calls to it
    inputs.py     static inputs, and how a call's tensors get into them
    engine.py     capture of one function on one set of static inputs
    outputs.py    whose memory a result is; buffers handed out and still in use
    captured_function.py
                  the replay that undoes what it did where it fails; one function over inputs that stay in place: a
                  graph, with eager behind it

and beside that way:

    buckets.py    dynamic dims, declared or inferred; which bucket a call goes to
    plans.py      the sizes seen, the buckets they give
    chunks.py     calls above the largest bucket, in pieces
    capture_all.py  every bucket before the first call
    adaptive.py   timings, and the decisions kept between runs
    relocation.py large arguments read where they lie
    explanation.py  what a callable says of itself
    traced.py     a function of a conditional's or a loop's, as Dynamo sees it
    depends.py    what a training step, or a function with collectives, reads in Python
    facts.py      what a captured graph reads, writes and draws
    older.py      the names of gfxgraph 1.x

and rooms of their own: trace/ (Dynamo: what was read), pieces/ (graphs that Dynamo and Inductor gave), fast_path/,
padding/, control/, training/, distributed/.
"""

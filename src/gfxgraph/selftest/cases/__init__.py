"""cases: the facts that ``gfxgraph doctor --selftest`` proves on the GPU that is there, one function each.

Each runs in a process of its own and compares with eager execution. The first line of a docstring is the
fact, as the report and the terminal show it. A new case is a function in the file of its theme and a line in
``IN_ORDER``.

    captures.py     captures and their replays: state, pools, streams, threads, nesting, random numbers
    values_on_host.py  values that reach the host inside a capture, and waits
    failing_captures.py  captures that fail, replays that are checked
    networks.py     decoding, training, the libraries
    long_runs.py    many replays, many graphs, many processes; default settings; speed
"""

from __future__ import annotations

from gfxgraph.selftest.cases import captures, failing_captures, long_runs, networks, values_on_host

# From simple to hard, so that the first failure of a list is the one to look at.
IN_ORDER = (
    captures.plain,
    captures.in_place_state,
    captures.reset_and_recapture,
    captures.shared_pool,
    networks.kv_cache_decode,
    captures.side_streams,
    captures.another_thread,
    values_on_host.split_at_comparison,
    values_on_host.split_undone,
    values_on_host.raised,
    values_on_host.nonzero,
    values_on_host.host_copies,
    values_on_host.pinned_copies,
    values_on_host.waits,
    captures.nested_capture,
    captures.replay_inside_capture,
    captures.side_stream_across_split,
    captures.dropout,
    captures.sampling,
    captures.unregistered_generator,
    failing_captures.unseen_wait,
    failing_captures.out_of_memory,
    failing_captures.unjoined_stream,
    failing_captures.users_error,
    failing_captures.validation_passes,
    failing_captures.validation_catches,
    failing_captures.node_walk,
    networks.graphed_callables,
    networks.training_step,
    long_runs.dropped_graphs,
    long_runs.alive_at_exit,
    long_runs.many_replays,
    long_runs.copy_before_replay,
    long_runs.processes_agree,
    long_runs.one_of_many_processes,
    networks.matmul_fp32,
    networks.matmul_fp16,
    networks.matmul_bf16,
    networks.convolution,
    networks.attention,
    long_runs.default_settings,
    long_runs.replay_overhead,
)

"""cases: the facts that ``gfxgraph doctor --selftest`` proves on the GPU that is there, one function each.

Each runs in a process of its own and compares with eager execution. The first line of a docstring is the
fact, as the report and the terminal show it. A new case is a function in the file of its theme and a line in
``IN_ORDER``.

    captures.py     captures and their replays: state, pools, streams, threads, nesting, random numbers
    host_values.py  values that reach the host inside a capture, and waits
    failures.py     captures that fail, replays that are checked
    networks.py     decoding, training, the libraries
    long_runs.py    many replays, many graphs, many processes; default settings; speed
"""

from __future__ import annotations

from gfxgraph.selftest.cases import captures, failures, host_values, long_runs, networks

# From simple to hard, so that the first failure of a list is the one to look at.
IN_ORDER = (
    captures.plain,
    captures.in_place_state,
    captures.reset_and_recapture,
    captures.shared_pool,
    networks.kv_cache_decode,
    captures.side_streams,
    captures.another_thread,
    host_values.split_at_comparison,
    host_values.split_undone,
    host_values.log_line,
    host_values.flowing_value,
    host_values.escaping_value,
    host_values.pinned_value,
    host_values.raised,
    host_values.nonzero,
    host_values.boolean_mask,
    host_values.host_copies,
    host_values.pinned_copies,
    host_values.tensor_constant,
    host_values.waits,
    host_values.queries,
    captures.nested_capture,
    captures.replay_inside_capture,
    captures.side_stream_across_split,
    captures.dropout,
    captures.sampling,
    captures.unregistered_generator,
    failures.unseen_wait,
    failures.out_of_memory,
    failures.unjoined_stream,
    failures.users_error,
    failures.validation_passes,
    failures.validation_catches,
    failures.node_walk,
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

"""patches: torch's functions that are replaced while a capture runs.

intercept.py, torch_functions.py
              host reads and waits that no dispatch mode sees: what is replaced, and torch's own
tensor_reads.py, waits.py
              the functions that replace them
numbers_after_capture.py
              a number of a capture passed to what asks for its type
rng_state.py, draws.py
              ``get_rng_state``, and other threads' draws while a capture runs
optimizers.py what torch refuses of optimizers inside a capture, and what they do in their first step alone
deferred_calls.py
              calls that would invalidate a capture without being operations: deferred, done first, or relaxed
"""

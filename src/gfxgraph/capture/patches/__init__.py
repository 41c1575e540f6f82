"""patches: torch's functions that are replaced while a capture runs.

replaced.py   the table of all of them: why, what instead, and when; intercept.py: how captures begin and end for it
torch_functions.py
              torch's own functions, and the capture of this thread
tensor_reads.py, waits.py
              host reads and waits that no dispatch mode sees
generators.py random states, seeds, and other threads' draws
optimizers.py what torch refuses of optimizers inside a capture, and what they do in their first step alone
deferred_calls.py
              calls that would invalidate a capture without being operations: deferred, done first, or relaxed
"""

"""patches: torch's functions that are replaced while a capture runs.

patch_table.py
              the table of all of them: why, what instead, and when; how captures begin and end for it
torch_functions.py
              torch's own functions, and the capture of this thread
tensor_reads.py
              host reads that no dispatch mode sees
optimizers.py steps of optimizers that no replay would repeat
deferred_calls.py
              calls that would invalidate a capture without being operations: deferred, done first, or relaxed
"""

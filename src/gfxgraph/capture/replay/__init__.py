"""replay: a captured program, run again, checked, or replaced by its tape.

program.py    a captured program, and what a replay of it does, step by step
held_inputs.py
              who holds a program's inputs, and what a replay does where they have changed
eager_tape.py running a tape eagerly
validation.py replay against eager, and tolerances for comparing two runs
rollback.py   saves and restores what the captured work changes outside its graph
node_walk.py  a program's nodes, launched one by one
runtime_workarounds.py
              workarounds for the runtime and torch's libraries while graphs exist
graph_tensors.py
              tensors over memory that a graph uses
"""

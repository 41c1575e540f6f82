"""padding: whether a call may run in a larger bucket, found by running it both ways.

    prover.py     the proof; attempt.py: its runs; compare.py: in what they must agree; proof.py: what comes out
    witness.py    one run, watched; with invent.py, nearness.py, outside.py, pystate.py
"""

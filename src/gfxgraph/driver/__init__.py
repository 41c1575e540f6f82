"""driver: locate, load, call and check the GPU runtime.

Enters: handles as integers, byte counts, status codes.
Stays out: torch, policy, the user's tensors.
"""

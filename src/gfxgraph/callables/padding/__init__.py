"""Whether a call may run at a larger size with padded rows, judged from its graph."""

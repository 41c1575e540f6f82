"""record: what a program does inside a capture, written down.

recorder.py   the dispatch mode that writes the tape
overloads.py  facts about each operation, and operations recorded whole
splits.py     what runs between two segments
host_values.py, host_memory.py
              values that leave the device; host memory that captured code read
dynamic_shapes.py
              calls that replays repeat whole: with such numbers, or tensors whose shape depends on data
random_generators.py
              the generators of a capture, and those that the captured program seeds; other threads' draws
streams.py    the streams of a capture, the collectives of a segment, and waits
user_lines.py which line of the program is running
"""

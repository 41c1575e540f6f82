"""Translate CUDA sources with torch's own hipify, out of place: the originals are never touched."""

from __future__ import annotations

import os
from collections.abc import Iterator


class HipifyError(Exception):
    """hipify cannot run here; the message says why."""


def hipify(source: str, output: str) -> Iterator[str]:
    """Translate the CUDA files below ``source`` into ``output``.

    Yields:
        One line a file that was written.

    Raises:
        HipifyError: torch is not installed, or the output lies inside the source.
    """
    try:
        # lazily: its absence is an answer
        from torch.utils.hipify import hipify_python
    except ImportError as error:
        raise HipifyError("torch.utils.hipify is not here: install torch, or use hipify-perl -o") from error
    source, output = os.path.abspath(source), os.path.abspath(output)
    if output == source or output.startswith(source + os.sep):
        raise HipifyError(f"{output} lies inside {source}: choose a folder outside, the sources stay as they are")
    result = hipify_python.hipify(
        project_directory=source,
        output_directory=output,
        includes=[os.path.join(source, "*")],
        ignores=[os.path.join(source, "hip_compat", "*")],  # HIP's already
        extensions=(".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp"),
        is_pytorch_extension=True,
        show_detailed=False,
        show_progress=False,
    )
    for path, entry in sorted(result.items()):
        written = getattr(entry, "hipified_path", None)
        if written and written != path:
            yield f"{os.path.relpath(path, source)} -> {written}"

"""Status codes of the simulated runtime and the exceptions torch makes of them.

Enters: numbers, HIP/CUDA names and texts.
Stays out: policy; which call returns which code is in ``profiles/``.

HIP and CUDA agree on all codes used here (data/hip_errors.json; they part above 910).
"""

from __future__ import annotations

from typing import Final

import torch

from gfxgraph.diagnostics import statuses

INVALID_VALUE: Final = 1
INVALID_CONTEXT: Final = 201
ILLEGAL_STATE: Final = 401
ILLEGAL_ADDRESS: Final = 700
LAUNCH_FAILURE: Final = 719
CAPTURE_UNSUPPORTED: Final = 900
CAPTURE_INVALIDATED: Final = 901
CAPTURE_MERGE: Final = 902
CAPTURE_UNMATCHED: Final = 903
CAPTURE_UNJOINED: Final = 904
CAPTURE_IMPLICIT: Final = 906
CAPTURE_WRONG_THREAD: Final = 908

# Codes that, planted at an operation of a capture, also end that capture.
CAPTURE_CODES: Final = frozenset(range(CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD + 1))

# A fault that leaves the device context unusable: every later call returns the same code.
STICKY: Final = frozenset({ILLEGAL_ADDRESS, LAUNCH_FAILURE})


def _status(code: int) -> statuses.Status | None:
    return next((status for status in statuses.by_number(code) if status.api == "HIP"), None)


def status_name(code: int, platform: str) -> str:
    """``hipErrorStreamCaptureInvalidated`` or ``cudaError...`` for ``code``."""
    known = _status(code)
    names = () if known is None else (known.name, *reversed(known.aka))
    return next((name for name in names if name.startswith(platform)), f"{platform}ErrorUnknown{code}")


def status_text(code: int) -> str:
    known = _status(code)
    return known.text if known is not None else "unknown error"


def torch_error(code: int, platform: str) -> RuntimeError:
    """The exception torch raises when a runtime call returns ``code``."""
    label = "HIP" if platform == "hip" else "CUDA"
    lines = [f"{label} error: {status_text(code)}"]
    if platform == "cuda":
        lines.append(
            f"Search for `{status_name(code, platform)}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
            "group__CUDART__TYPES.html for more information."
        )
    blocking = "AMD_SERIALIZE_KERNEL=3" if platform == "hip" else "CUDA_LAUNCH_BLOCKING=1"
    dsa = "TORCH_USE_HIP_DSA" if platform == "hip" else "TORCH_USE_CUDA_DSA"
    lines += [
        f"{label} kernel errors might be asynchronously reported at some other API call, so the stacktrace "
        "below might be incorrect.",
        f"For debugging consider passing {blocking}",
        f"Compile with `{dsa}` to enable device-side assertions.",
        "",
    ]
    error: RuntimeError = torch.AcceleratorError("\n".join(lines))
    error.error_code = code  # type: ignore[attr-defined]  # torch sets the same attribute
    return error

"""What a finding does to a port: the order in which findings are shown and worked through.

A rule's impact follows from its code; a code in none of the sets stops a build, an import or a run.

Enters: rule codes.
Stays out: severities, which say how bad one place is within its impact.
"""

from __future__ import annotations

from enum import IntEnum

from gfxgraph.port.model import Finding


class Impact(IntEnum):
    """The worst first."""

    BREAKS = 0  # the build, the import or the first run
    SILENT = 1  # it runs and is wrong, or takes a path that was not meant
    SLOW = 2
    NAME = 3  # a name that a translator or a second target takes care of

    @property
    def label(self) -> str:
        return self.name.lower()


_SILENT = frozenset(
    "capability-gate capability-gate-cpp device-name-gate truthy-or-arch alloc-conf-combo fp8-e4m3fn-hardcoded "
    "fp8-fnuz-for-any-hip dead-rocm-branch version-text-compare device-query-before-visibility "
    "torch-build-by-label sm-label-gate sm-arch-list-parse hardcoded-gfx cuda-visible-devices "
    "with-cuda-dispatch cudacc-guard cuda-arch-guard cuda-version-guard popc-on-ballot lane-arithmetic "
    "warp-size-32 lane-mask-32bit-variable reduction-from-16 partial-warp-shuffle wave-64-hardcoded "
    "device-macro-in-host lane-shift-32 warp-constant-use bare-32-in-warp-code warp-tail cub-warp-width "
    "shared-storage-reuse sm-number return-before-barrier warp-sized-array layered-array texture-pitch "
    "host-callback-frees tests-skip-on-amd bitwise-test golden-from-device-rng sync-in-capture "
    "alloc-from-host-in-capture capture-before-warmup compile-reduce-overhead inductor-cudagraphs "
    "ungated-rocm-change ineffective-rng-patch build-on-cuda-available sdpa-backend-forced torch-not-rocm "
    "visible-devices-conflict syncwarp managed-memory lockfile-resync cuda-wheel-index torch-in-core-deps "
    "pip-install-with-deps fp-contract".split()
)
_SLOW = frozenset(
    "tf32-flag reduced-precision-reduction triton-num-stages launch-bounds triton-dot-precision "
    "alloc-conf-max-split alloc-conf-expandable compile-max-autotune inductor-max-autotune "
    "inductor-memory-planning inductor-cutlass-backend env-max-autotune nccl-nvidia-env numa-balancing "
    "perf-env-missing scoped-atomics manual-capture cudnn-only-flag".split()
)
_NAME = frozenset(
    "untranslated-cuda cub-primitives cmake-cuda-arch nvtx nvcc-pragma hip-arm-has-cuda "
    "generated-hip-not-ignored requires-python-conservative cuda-no-half-flags nccl-nvtx-nvml-cpp hsa-override "
    "cuda-only-torch-api nvidia-wheel-paths cuda-named-in-recipe".split()
)


def impact_of(code: str) -> Impact:
    """The impact of a rule, by its code."""
    if code in _SILENT:
        return Impact.SILENT
    return Impact.SLOW if code in _SLOW else Impact.NAME if code in _NAME else Impact.BREAKS


def rank(f: Finding) -> tuple[int, int, int, str, str, int]:
    """A sort key: impact, then severity, then what costs least, then the place."""
    return impact_of(f.code), -f.severity, f.effort, f.rule, f.path, f.line

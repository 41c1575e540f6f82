"""diagnostics.libraries: the package that holds a missing file."""

from __future__ import annotations

import pytest

from gfxgraph.diagnostics import libraries


@pytest.mark.parametrize(
    ("line", "system", "said"),
    [
        ("ImportError: libdw.so.1: cannot open shared object file", "", "sudo apt install libdw1 "),
        ("ImportError: libdw.so.1: cannot open shared object file", "fedora", "sudo dnf install elfutils-libs "),
        ("libsuitesparseconfig.so.7: cannot open shared object file", "archlinux", "sudo pacman -S suitesparse "),
        ("librocprofiler-sdk.so.0: cannot open shared object file", "", "sudo apt install rocprofiler-sdk "),
        ("/usr/bin/ld: cannot find -lamdhip64", "", "sudo apt install hip-runtime-amd "),
        ("fatal error: 'rocrand/rocrand.h' file not found", "", "sudo apt install rocrand-dev "),
        ("fatal error: hip/hip_runtime.h: No such file or directory", "", "sudo apt install hip-dev "),
        ("  hipblas-config.cmake not found", "", "sudo apt install hipblas-dev "),
        ("ImportError: libnvrtc.so.12: cannot open shared object file", "", "pip install --force-reinstall torch "),
        ("libomp140.x86_64.dll was not found", "windows", "winget install Microsoft.VisualStudio"),
        ("VCRUNTIME140_1.dll was not found", "windows", "winget install Microsoft.VCRedist"),
        ("loaded librocblas.so.4", "", ""),
        ("libfoo.so.1: cannot open shared object file", "", ""),
    ],
)
def test_the_missing_file_names_the_package(line: str, system: str, said: str) -> None:
    """By system; a file of NVIDIA's means that a build for CUDA is installed."""
    answer = libraries.advice(line, frozenset({system}), "en")
    assert answer.startswith(said) if said else not answer

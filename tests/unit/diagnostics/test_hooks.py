"""diagnostics.hooks: the explanation is added, the original traceback stays."""

import subprocess
import sys
import textwrap

import pytest

from gfxgraph.diagnostics.hooks import diagnose
from gfxgraph.errors import CaptureError

FAILURE = "HIP error: invalid device function"


def run(code, **environ):
    """Run a program with diagnostics installed; return its stderr."""
    source = "import gfxgraph.hardware.advice as a; a.install_diagnostics()\n" + textwrap.dedent(code)
    import os

    found = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        env=os.environ | {"GFXGRAPH_LANG": "en"} | environ,
    )
    return found


def test_an_uncaught_error_is_explained_after_its_traceback():
    """The traceback is Python's own and comes first; the exit status stays 1."""
    found = run(f"def f():\n    raise RuntimeError({FAILURE!r})\nf()")
    trace, _, rest = found.stderr.partition(f"RuntimeError: {FAILURE}\n")
    assert trace.startswith("Traceback (most recent call last):") and "in f" in trace
    assert rest.strip().startswith("no_kernel_image:")
    assert found.returncode == 1


def test_other_errors_stay_as_they_are():
    """Nothing is added to what has nothing to do with GPUs, nor to Ctrl-C."""
    assert run("raise ValueError('x')").stderr.endswith("ValueError: x\n")
    assert "no_kernel_image" not in run(f"raise SystemExit({FAILURE!r})").stderr


def test_the_cause_of_a_wrapped_error_is_explained():
    """Engines raise their own error from the one that says why."""
    code = f"""
        try:
            raise RuntimeError({FAILURE!r})
        except RuntimeError as e:
            raise ValueError('engine died') from e
    """
    assert "no_kernel_image:" in run(code).stderr


def test_threads_are_covered():
    """An exception in a thread keeps its traceback and is explained."""
    code = f"""
        import threading
        def work():
            raise RuntimeError({FAILURE!r})
        t = threading.Thread(target=work); t.start(); t.join()
    """
    text = run(code).stderr
    assert "Exception in thread" in text and "in work" in text
    assert text.index("RuntimeError: HIP") < text.index("no_kernel_image:")


def test_asyncio_is_covered():
    """A task that nobody awaited is logged by asyncio as ever, and explained."""
    code = f"""
        import asyncio, gc
        async def work():
            raise RuntimeError({FAILURE!r})
        async def main():
            task = asyncio.create_task(work())
            await asyncio.sleep(0.01)
            del task
            gc.collect()
        asyncio.run(main())
    """
    text = run(code).stderr
    assert "Task exception was never retrieved" in text and "in work" in text
    assert text.index("RuntimeError: HIP") < text.index("no_kernel_image:")


def test_gfxgraph_diag_0_silences():
    """The setting switches it all off."""
    assert "no_kernel_image" not in run(f"raise RuntimeError({FAILURE!r})", GFXGRAPH_DIAG="0").stderr


def test_it_speaks_the_language_of_the_setting():
    """GFXGRAPH_LANG=zh."""
    assert "尝试：" in run(f"raise RuntimeError({FAILURE!r})", GFXGRAPH_LANG="zh").stderr


def test_undo_gives_the_hooks_back():
    """What install changed, its result changes back."""
    code = """
        import logging, threading
        a.install_diagnostics()()
        assert sys.excepthook is sys.__excepthook__
        assert threading.excepthook is threading.__excepthook__
        assert not logging.getLogger("asyncio").filters
    """
    assert run("import sys" + code.replace("\n        ", "\n")).returncode == 0


def test_diagnose_adds_a_note_to_the_very_exception():
    """The exception that leaves the block is the one that was raised, with its explanation."""
    error = RuntimeError(FAILURE)
    with pytest.raises(RuntimeError) as caught, diagnose("decode"):
        raise error
    assert caught.value is error
    (note,) = error.__notes__
    assert note.startswith("[decode] no_kernel_image:")


def test_diagnose_leaves_other_errors_alone():
    """No note where there is nothing to say; none on our own errors, which say it themselves."""
    for error in (ValueError("x"), CaptureError("end_failed")):
        with pytest.raises(type(error)), diagnose():
            raise error
        assert not hasattr(error, "__notes__")

"""diagnostics.explainer: subjects of every kind, root cause first, nothing where there is nothing."""

import json
from pathlib import Path

import pytest

from gfxgraph.diagnostics.explainer import conclude, explain
from gfxgraph.diagnostics.scan import Scanner
from gfxgraph.errors import CaptureError
from gfxgraph.hardware.advice import family_of


@pytest.mark.parametrize(
    "subject, code",
    [
        ("out_of_memory", "out_of_memory"),
        ("aiter_on_rdna", "aiter_unsupported"),
        ("hipErrorNoBinaryForGpu", "no_kernel_image"),
        ("cudaErrorIllegalAddress", "illegal_address"),
        ("HSA_STATUS_ERROR_EXCEPTION", "hsa_queue_abort"),
        ("rocblas_status_internal_error", "blas_error"),
        ("HIPBLAS_STATUS_NOT_SUPPORTED", "blas_error"),
        ("miopenStatusUnknownError", "miopen_compile_failed"),
        ("ncclInvalidUsage", "rccl_error"),
        ("700", "illegal_address"),
        (700, "illegal_address"),
        ("0x1016", "hsa_queue_abort"),
        ("(901)", "capture_invalidated"),
        (-6, "process_aborted"),
        ("139", "process_crashed"),
        ("No available kernel. Aborting execution.", "no_kernel_image"),
        (RuntimeError("HIP error: invalid device function"), "no_kernel_image"),
        (CaptureError("end_failed"), "end_failed"),
    ],
)
def test_a_subject_is_recognised(subject, code):
    """Codes, old slugs, names of HIP, CUDA, HSA and libraries, numbers, texts and exceptions."""
    assert explain(subject).code == code


@pytest.mark.parametrize(
    "text, code, older",
    [
        ("No available kernel", "no_kernel_image", None),
        ("illegal memory access", "illegal_address", None),
        ("missing fdot2.bf16.bf16", "bf16_unsupported", None),
        ("please set HSA_OVERRIDE_GFX_VERSION", "wrong_arch_override", "wrong_arch"),
        ("wave64_ignored", "wavefront_mismatch", "wave64_ignored"),
        ("aiter_on_rdna", "aiter_unsupported", "aiter_on_rdna"),
    ],
)
def test_what_older_releases_explained(text, code, older):
    """The examples that were shown for version 1, and its codes, which programs compare with."""
    found = explain(text).code
    assert found == code and found != "oom" and {found: 1}[code] == 1
    assert older is None or found == older


def test_every_hip_error_is_known_by_name_and_number():
    """hipError_t whole: the status is shown with name, number and meaning."""
    from gfxgraph.diagnostics import statuses

    for status in (row for row in statuses.every() if row.api == "HIP"):
        for subject in (status.name, str(status.number), *status.aka):
            text = explain(subject, lang="en").format()
            assert f"{status.name} (HIP {status.number}" in text, subject
            assert status.en in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "Wavefront Size:          64(0x40)",
        "* removed the warning 'not supported on AMD GPUs' from the docs",
        "- Fixed: bf16 was not supported on AMD GPUs (#123)",
        "  * add a clear message where flash attention is not supported on gfx1100",
        "WARN: aiter not found, falling back to triton attention",
        "[ 3.4] kfd kfd: amdgpu: added device 1002:73bf",
        "MIOpen(HIP): Info [GetKernels] 0 kernels for key",
        "hipMalloc: Returned hipSuccess :",
        "Successfully installed torch-2.11.0+rocm7.2 triton-rocm-3.6",
        "ModuleNotFoundError: No module named 'numpy'",
        "Permission denied (publickey).",
        "INFO: optional library librccl-net.so not found, using internal network plugin",
        "Loaded 32 layers, 0 errors, 0 failed",
        "HIP version: 7.2.26015, gfx1100, ROCm 7.2",
        "expandable_segments:False",
        "[    9.9] amdgpu 0000:7b:00.0: amdgpu: SMU is initialized successfully!",
        "[    9.1] amdgpu 0000:7b:00.0: amdgpu: MODE2 reset",
        "[    9.2] amdgpu 0000:7b:00.0: amdgpu: PCIE atomic ops is not supported",
        "[    9.3] amdgpu: sched_policy has invalid value",
        "[    9.4] amdgpu 0000:7b:00.0: BAR 2: releasing [mem 0xc0000000-0xc01fffff 64bit pref]",
        "epoch 3 loss 0.700 step 901",
        "test_illegal_address PASSED",
        "100%|##########| 700/700 [00:12<00:00]",
    ],
)
def test_harmless_lines_stay_unexplained(text):
    """Words alone do not make an error."""
    found = explain(text)
    assert not found and found.code is None


CHAINS = [
    (
        "an RCCL watchdog behind a dead capture",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing\n"
        "[rank0]: ProcessGroupNCCL.cpp:1834] [PG ID 0] Process group watchdog thread terminated with exception: "
        "CUDA error: operation not permitted on an event last recorded in a capturing stream\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error\n",
        "capture_unsupported_op",
    ),
    (
        "a BLAS handle made lazily inside a capture",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`\n"
        "HIP error: operation not permitted when stream is capturing\n",
        "capture_unsupported_op",
    ),
    (
        "no rights to the device behind no device",
        "Unable to open /dev/kfd read-write: Permission denied\nRuntimeError: No HIP GPUs are available\n",
        "kfd_permission",
    ),
    (
        "no atomics behind no device",
        "amdgpu 0000:7b:00.0: amdgpu: PCIE atomic ops is not supported\nRuntimeError: No HIP GPUs are available\n",
        "pcie_atomics",
    ),
    (
        "a page fault behind a launch failure and a collective",
        "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Page not present.\n"
        "RuntimeError: HIP error: unspecified launch failure\n[rank1] NCCL WARN Cuda failure\n",
        "illegal_address",
    ),
    (
        "a wrong override behind a queue abort",
        "$ HSA_OVERRIDE_GFX_VERSION=11.0.0 python train.py\n"
        "Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: code: 0x2a\n",
        "wrong_arch_override",
    ),
]


@pytest.mark.parametrize("what, text, root", CHAINS, ids=[chain[0] for chain in CHAINS])
def test_the_root_cause_comes_first(what, text, root):
    """One failure causes many lines; the entry nearest the cause leads, in whatever order they come."""
    assert explain(text).code == root
    assert explain("\n".join(reversed(text.splitlines()))).code == root


def test_repeats_are_folded_with_their_count():
    """A line that comes a thousand times is shown once."""
    scanner = Scanner()
    for number in range(1000):
        scanner.feed(b"step %d\nHIP out of memory. Tried to allocate %d MiB\n" % (number, number))
    found = conclude(scanner, lang="en")
    assert len(found.matches) == 1
    assert found.matches[0].count == 1000 and found.matches[0].line == 2
    assert found.format().count("Tried to allocate") == 1
    assert "1000 times" in found.format()


def test_a_line_cut_between_pieces_is_found():
    """Pipes break lines anywhere."""
    text = b"x\nMemory access fault by GPU node-1 (Agent handle)\ny\n"
    for cut in range(1, len(text)):
        scanner = Scanner()
        scanner.feed(text[:cut])
        scanner.feed(text[cut:])
        assert conclude(scanner).code == "illegal_address"


def test_far_into_a_stream_the_fast_path_finds_the_same():
    """Behind the head of a stream, where only triggers are looked for, nothing is missed."""
    filler = b"INFO step 00 loss 0.1 tokens 12\n" * 20_000
    for line in (
        b"rocBLAS error: Cannot read /x/TensileLibrary.dat",
        b"hipErrorNoDevice",
        b"HW Exception by GPU node-1",
    ):
        alone, behind = Scanner(), Scanner()
        alone.feed(line + b"\n")
        behind.feed(filler)
        behind.feed(line + b"\n")
        assert conclude(alone).code == conclude(behind).code is not None


def test_memory_stays_fixed_on_lines_that_never_repeat():
    """A stream of ever new lines does not grow what is kept."""
    from gfxgraph.diagnostics import scan

    scanner = Scanner()
    words = [f"{a}{b}{c}" for a in "ghijklmnop" for b in "qrstuvwxyz" for c in "ghijklmnopqrstuvwxyz"]
    for first in words[:6]:  # half as many again as are kept
        scanner.feed("".join(f"{first} {second} hipErrorNoBinaryForGpu\n" for second in words).encode())
    assert 0 < len(scanner._judged) <= scan._MOST_FORMS < 6 * len(words)
    assert len(scanner.context) <= scan._HEAD + scan._END + 200 * 2 * scan._NEAR


def test_a_line_without_end_does_not_grow():
    """A progress bar or a binary file without newlines is cut."""
    scanner = Scanner()
    for _ in range(100):
        scanner.feed(b"x" * 100_000)
    assert len(scanner._tail) < 200_000


def test_notes_follow_the_gpu_that_the_log_names():
    """gfx1031 in the log brings RDNA2's note, whatever this machine has."""
    text = "Device gfx1031\nRuntimeError: HIP error: invalid device function\n"
    found = explain(text, family_of=family_of)
    assert found.families == ("RDNA2",)
    assert "RDNA2: wheels before ROCm 10 have gfx1030 only" in found.format("en", more=True)


def test_hints_need_their_own_evidence():
    """The advice about an integrated GPU is given where the log shows one, and only there."""
    card = "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.9 GiB"
    igpu = card.replace("15.9 GiB", "512.00 MiB")
    assert "iGPU" in explain(igpu, lang="en").format()
    assert "iGPU" not in explain(card, lang="en").format()


def test_json_has_the_promised_keys():
    """``code`` is the root cause or null; matches carry line, count and text."""
    found = json.loads(json.dumps(explain("hipErrorNoDevice at line 3\n", lang="zh").as_dict()))
    assert found["code"] == "no_device" and found["explanation"]["do"]
    assert found["matches"][0]["line"] == 1
    empty = explain("all is well").as_dict()
    assert empty["code"] is None and empty["matches"] == [] and empty["explanation"] is None


def test_our_own_error_in_a_log_is_recognised():
    """What a program printed of ours is explained as ours, not as what it quotes."""
    error = CaptureError("capture_failed", op="aten::x", where="m.py:1", status="hipErrorStreamCaptureInvalidated")
    for lang in ("en", "zh"):
        assert explain("Traceback:\n" + error.text(lang)).code == "capture_failed"


def test_the_explanation_reads_as_it_should():
    """A snapshot, reviewed like prose: what decides comes first, then what to try; every cause with more."""
    text = "RuntimeError: No HIP GPUs are available"
    assert explain(text, lang="en").format().splitlines() == [
        "no_device: the runtime starts, but sees no usable GPU",
        "  seen: RuntimeError: No HIP GPUs are available  (line 1)",
        "  the log does not decide; it may be: this user may not open /dev/kfd and /dev/dri/renderD* (render group), "
        "the container was not given them, the amdgpu driver is not loaded, a *_VISIBLE_DEVICES variable hides "
        "the GPU, or a device number is too high",
        "  check: rocminfo | grep gfx: nothing: the driver, rights or container (gfxgraph doctor says which); a "
        "name: the program brings an older HIP, or a variable hides the GPU",
        "  try:  rights: sudo usermod -aG render,video $USER, then log in again",
        "        driver: lsmod | grep amdgpu ; sudo modprobe amdgpu",
        "  more: gfxgraph explain no_device",
    ]
    more = explain(text, lang="en").format(more=True)
    assert "  what: HIP reports no device" in more and "  C  the amdgpu kernel module is not loaded" in more
    chinese = explain(text, lang="zh").format()
    assert chinese.startswith("no_device: 运行时已启动，但看不到可用的 GPU\n  日志：RuntimeError")
    assert "日志不足以判断" in chinese and "检查：rocminfo" in chinese and "尝试：权限：sudo usermod" in chinese


def test_what_programs_print_is_recognised():
    """Each message of the table, in the form that its program's source gives it, is explained as what it is."""
    wrong = []
    for line in (Path(__file__).parent / "formats.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            code, program, text = line.split(" | ", 2)
            found = explain(text.replace(r"\n", "\n"))
            # Some are warnings that say themselves how the program goes on.
            known = [match.code for match in (*found.matches, *found.warned)][:1]
            if known != [code]:
                wrong.append((program, text, code, known))
    assert wrong == []


HARMLESS = {
    "a list of changes": "* Fixed an issue where hipMemcpy returned hipErrorInvalidValue\n"
    "* bf16 is not supported on gfx906",
    "release notes": "## Known issues\nSome programs may see hipErrorNoBinaryForGpu on gfx1034.\n"
    "Flash attention is not supported on AMD GPUs in this release.",
    "a list of options": "usage: server [options]\n  --flash-attn    Flash Attention (not supported on all GPUs)",
    "the runtime's trace": ":3:hip_event.cpp :430 : 11 us: hipEventQuery: Returned hipErrorNotReady :",
    "properties": "  Wavefront Size:          64(0x40)\nGPU 0: AMD Instinct MI250X, xnack disabled, sramecc enabled",
    "a plugin that need not be there": "NCCL INFO NET/Plugin: Plugin load returned 2 : librccl-net.so: cannot open "
    "shared object file: No such file or directory : when loading librccl-net.so",
    "a command": "$ docker run -it --device=/dev/kfd --device=/dev/dri --group-add video rocm/pytorch:latest",
    "a kernel's start": Path(__file__).with_name("kernel_start.txt").read_text(),
    "a container's environment": "-env HSA_FORCE_FINE_GRAIN_PCIE 1 -env NCCL_DEBUG INFO",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_only_mentions_failures_stays_unexplained(text):
    """Trigger words in prose, traces and lists of properties are no failures."""
    assert explain(text).code is None


def test_an_error_under_a_heading_is_still_an_error():
    """Reports have headings too; what a program printed below one counts."""
    assert explain("## Known issues\nRuntimeError: No HIP GPUs are available").code == "no_device"
    report = "# Error Report\n- **Exception Message:** HIP error: invalid device function"
    assert explain(report).code == "no_kernel_image"


def test_the_gpu_that_the_log_names_is_shown():
    """With its family where the table of architectures is at hand."""
    text = "Device 0: gfx1101\nRuntimeError: HIP error: invalid device function\n"
    assert explain(text, lang="en", family_of=family_of).archs == ("gfx1101 (RDNA3)",)
    assert "  gpu:  gfx1101 (RDNA3)\n" in explain(text, lang="en", family_of=family_of).format()


def test_text_far_into_a_line_is_seen():
    """Neither column 8192 nor a megabyte without a newline hides a failure."""
    for before in (9_000, 70_000, 1_200_000):
        scanner = Scanner()
        line = b"near to it: HIP erro " * (before // 21) + b" rocBLAS error: Cannot read /x/TensileLibrary.dat"
        for begin in range(0, len(line), 40_000):
            scanner.feed(line[begin : begin + 40_000])
        assert conclude(scanner).code == "rocblas_missing_tensile", before


def test_terminal_escapes_hide_nothing_and_are_not_passed_on():
    """Colours between the words of a message; other control characters are written out where a line is shown."""
    found = explain("\x1b[31mHIP\x1b[0m error: \x1b[1minvalid device function\x1b[0m\x07", lang="en")
    assert found.code == "no_kernel_image"
    assert "\x1b" not in found.format() and "\x07" not in found.format() and "\\x07" in found.format()


OTHERS = {
    "NVIDIA": "NVIDIA GeForce RTX 4090\nRuntimeError: CUDA error: an illegal memory access was encountered",
    "Intel": "Intel(R) Arc(TM) A770 Graphics\nRuntimeError: out of memory: failed to allocate device memory",
    "Apple": "Apple M2 Pro, Metal\nerror: failed to allocate buffer, GPU out of memory",
    "a test that expects it": "[ RUN      ] A.B\nhipErrorOutOfMemory\n[       OK ] A.B (1 ms)",
    "source": '    if (hipMalloc(&p, n) == hipErrorOutOfMemory) {\n        throw Error("HIP out of memory");\n    }',
    "commits": "a1b2c3d fix: hipErrorOutOfMemory on gfx1151\nb2c3d4e rccl: raise unhandled system error earlier",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_is_no_failure_of_amd_stays_unexplained(text):
    """Other vendors' devices, tests that passed, source code and lists of commits."""
    assert explain(text).code is None


def test_an_amd_gpu_beside_another_is_enough():
    """Machines have GPUs of several vendors; and a failed test is a failure."""
    assert explain(OTHERS["NVIDIA"] + "\namdgpu: AMD Radeon RX 7900 XTX").code == "illegal_address"
    assert explain("[ RUN      ] A.B\nhipErrorOutOfMemory\n[  FAILED  ] A.B (1 ms)").code == "out_of_memory"


def test_the_last_resort_is_honest():
    """Component, line and next steps, said not to be in the catalogue; nothing for lines that are no errors."""
    found = explain("INFO start\nmigraphx::exception: Error: frobnication of the third kind", lang="en")
    assert (
        found.code == "not_in_catalogue" and found.matches[0].component == "MIGraphX" and found.matches[0].line == 2
    )
    assert "not in the catalogue" in found.format() and "migraphx-driver" in found.format()
    assert explain("INFO migraphx: 0 errors, compiled for gfx1100").code is None


def test_advice_is_filled_in_for_the_gpu_and_system_of_the_log():
    """By target, by the name the card is sold under, and by the system's paths."""
    from gfxgraph.hardware import advice

    failed = "\nRuntimeError: HIP error: invalid device function"
    assert "/gfx1151/ torch" in advice.explain("AMD Radeon 8060S" + failed, lang="en").format()
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in advice.explain("gfx1031 on /dev/kfd" + failed, lang="en").format()
    windows = advice.explain("C:\\venv\\python.exe gfx1031" + failed, lang="en").format()
    assert "export " not in windows and "sudo" not in windows and "{arch}" not in windows and "gfxNNNN" not in windows
    unknown = advice.explain("some GPU on /dev/kfd" + failed, lang="en").format(more=True)
    assert "gfxNNNN" not in unknown and "rocminfo | grep -om1" in unknown


def test_what_no_entry_holds_is_judged_by_its_form_and_says_so():
    """The entry that such sentences belong to in any program; people and programs are told that it is a guess."""
    found = explain("hipfrob: ERROR: requires CDNA hardware", lang="en")
    assert found.code == "gpu_unsupported" and found.as_dict()["matches"][0]["is_by_form"]
    assert "by its form it says this" in found.format()
    assert not explain("hipErrorNoBinaryForGpu", lang="en").as_dict()["matches"][0]["is_by_form"]


def test_the_message_of_a_commit_is_no_failure_however_long():
    """Git indents it below its head; the same lines elsewhere are explained."""
    body = "\n".join(
        ["rocm: say more", "", *["    more"] * 9, "    hipErrorNoBinaryForGpu: Unable to find code object"]
    )
    head = "commit 0123456789abcdef0123456789abcdef01234567\nAuthor: N <n@x>\nDate:   Mon Nov 3 2025\n\n    "
    assert not explain(head + body)
    assert explain(body).code == "no_kernel_image"


def test_a_library_that_is_missing_is_amds_only_where_something_names_amd():
    """The loader's words are the same for every library."""
    missing = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"
    assert not explain(missing)
    assert explain(f"torch 2.9.0+rocm6.4\n{missing}").code == "missing_shared_library"


@pytest.mark.parametrize(
    "name, arch",
    [
        ("VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Cezanne", "gfx90c"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 22 [Radeon]", "gfx1031"),
        ("a portrait in the manner of Rembrandt", ""),
    ],
)
def test_gpus_are_known_by_their_code_names(name, arch):
    """As lspci prints them; a painter is no GPU."""
    assert explain(f"{name}\nhipErrorNoBinaryForGpu", lang="en").situation.arch == arch


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ('NCCL WARN Missing "iommu=pt" from kernel command line\nrank 0 - Init COMPLETE\n', ""),
        ('NCCL WARN Missing "iommu=pt" from kernel command line\nNCCL INFO waiting\n', "peer_access_iommu"),
        ("MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1100_48.kdb\nEpoch 1 33.10it/s\n", ""),
        ("amdgpu 0000:05:00.0: amdgpu: EEPROM hw is supported, 0 bad pages recorded\n", ""),
        (
            "amdgpu 0000:05:00.0: amdgpu: 2 uncorrectable hardware errors detected in total in gfx block\n",
            "ecc_error",
        ),
        ("amdgpu 0000:08:00.0: Invalid PCI ROM header signature\namdgpu: ring gfx uses VM inv eng 0 on hub 0\n", ""),
    ],
)
def test_a_warning_after_which_the_program_got_done_is_no_failure(log, code):
    """Only warnings, then success: false, and its text names the line; without success it is explained."""
    found = explain(log)
    assert (found.code or "") == code
    if found.warned:
        assert "line 1 warns" in found.format("en") and found.warned[0].code in found.format("en")


def test_only_a_statement_beside_the_failure_proves_a_cause() -> None:
    """What stands far from the failing line is of something else that ran, and a name proves nothing anywhere."""
    failed = (
        "MIOpen Error: /MIOpen/src/hipoc/hipoc_program.cpp:286: Code object build failed. Source: MIOpenIm2d2Col.cl\n"
    )
    said = (
        "MIOpen(HIP): Error [SetIsaName] 'amd_comgr_action_info_set_isa_name' gfx900:sramecc-: INVALID_ARGUMENT (2)\n"
    )
    assert "  why:  comgr does not know the target" in explain(said + failed, lang="en").format()
    far = explain(said.replace("MIOpen(HIP)", "tool") + "step\n" * 30 + failed, lang="en").format()
    assert "comgr does not know" not in far and "  the log does not decide; it may be: " in far
    named = explain(
        "(EngineCore pid=9) vllm\nMemory access fault by GPU node-1 on address 0x7f00\n", lang="en"
    ).format()
    assert "why:" not in named and named.index("  check: ") < named.index("  try:  ")


def test_a_cause_that_the_log_names_but_does_not_prove_is_checked_first() -> None:
    """The message of a program that only passes on that another one died."""
    found = explain("Error: llama runner process has terminated: exit status 2", lang="en")
    assert "  check: journalctl -u ollama -n 200" in found.format() and found.as_dict()["undecided"] is True

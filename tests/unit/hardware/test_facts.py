"""hardware.facts, bad_versions and what explanations make of them: a machine proves a cause, or excludes it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gfxgraph.diagnostics import causes
from gfxgraph.hardware import advice, bad_versions, defects, facts, findings
from gfxgraph.hardware.facts import Site
from tests.unit.hardware.trees import LAPTOP, Card, build, machine, write

NO_GPU = "RuntimeError: No HIP GPUs are available"
FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown."
STRIX = Card(110501, 80, 96 << 30, 0xC4, 0x1586, "Radeon 8060S")


def explained(text: str, root: Path, **environ: str) -> str:
    return advice.explain(text, lang="en", facts=facts.probe(Site(machine(root, **environ), []))).format()


def allow(root: Path, mode: int) -> None:
    for name in ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129"):
        (root / name).chmod(mode)


def test_what_the_machine_proves_is_the_answer_with_its_fix(tmp_path: Path) -> None:
    """The same log on three machines: no rights, a variable that hides the GPU, and nothing wrong."""
    build(tmp_path, LAPTOP)
    allow(tmp_path, 0o600)
    refused = explained(NO_GPU, tmp_path)
    assert "proved: this user may not open /dev/kfd" in refused and "(access.kfd: refused)" in refused
    assert "do:   sudo usermod -aG " in refused
    allow(tmp_path, 0o666)
    hidden = explained(NO_GPU, tmp_path, HIP_VISIBLE_DEVICES="-1")
    assert "hides every GPU" in hidden and "do:   unset HIP_VISIBLE_DEVICES" in hidden
    fine = explained(NO_GPU, tmp_path)
    assert "proved" not in fine and "A  this user" not in fine and "CUDA build" not in fine


def test_a_log_that_does_not_decide_says_so() -> None:
    """Without facts: the command that decides, every cause in JSON with its own; nothing that the log contradicts."""
    for lang, undecided in (("en", "the log does not decide"), ("zh", "日志不足以判断")):
        found = advice.explain(NO_GPU, lang=lang, facts={})
        text = found.format()
        assert undecided in text and "rocminfo | grep gfx" in text and "sudo usermod" in text
        assert "CUDA build" not in text and "CUDA 构建" not in text, "a torch that says HIP is no CUDA build"
        told = json.loads(json.dumps(found.as_dict()))
        assert told["undecided"] and len(told["causes"]) > 1 and all(cause["check"] for cause in told["causes"])


def test_what_healthy_machines_have_too_proves_nothing() -> None:
    """Two ROCm copies are named first, with the check, and not as the proved cause of a crash."""
    crashed = "gfx1030 rocm: Segmentation fault (core dumped)"
    text = advice.explain(crashed, lang="en", facts={"rocm.n": 2, "gpu.arch": ["gfx1030"]}).format()
    assert "proved" not in text and "  A  two ROCm installations" in text


def test_json_says_that_nothing_failed() -> None:
    """A healthy log and a warning are told apart, and neither is a failure."""
    nothing = advice.explain("step 3 loss 0.1").as_dict()
    assert nothing["verdict"] == "nothing" and nothing["text"] and nothing["causes"] == []


def test_firmware_of_the_table_is_found_by_probe_doctor_and_explain(tmp_path: Path) -> None:
    """MES 0x83 on gfx1151: one row, for all who ask; another firmware or GPU is not accused."""
    build(tmp_path, [STRIX])
    file = "/sys/bus/pci/devices/0000:c4:00.0/fw_version/mes_fw_version"
    write(tmp_path, file, "0x00000083")
    assert facts.probe(Site(machine(tmp_path), []))["bad"] == ["mes-0x83-gfx115x"]
    assert "proved: MES firmware 0x83" in explained(FAULT, tmp_path)
    known = facts.probe(Site(machine(tmp_path), []))
    shown = [one for one in findings.of(known) if one.name == "known to be bad"]
    assert len(shown) == 1 and "MES firmware 0x83" in shown[0].en and "linux-firmware" in shown[0].fix
    write(tmp_path, file, "0x00000080")
    assert facts.probe(Site(machine(tmp_path), []))["bad"] == [] and "0x83" not in explained(FAULT, tmp_path)


def test_the_table_of_bad_versions() -> None:
    """Dated, with a source; a row for graphs is one of the defect table; predicates can be read."""
    graphs = {row.id for row in defects.rows()}
    for row in bad_versions.rows():
        assert row.date >= "2025" and row.sources and row.en["why"] and row.zh["why"] and set(row.en) == set(row.zh)
        assert causes.holds(row.when, {}) is None
        assert not row.graph or row.id in graphs
    assert {"hipblaslt-workspace-grows", "addresses-move-without-vm-pools", "events-in-graphs-tell-no-time"} <= graphs


@pytest.mark.parametrize(
    ("term", "known", "so"),
    [
        ("a == x*", {"a": "xy"}, True), ("a == x", {"a": ["y", "x"]}, True), ("a == x", {}, None),
        ("a != x", {"a": []}, True),
        ("a < 0.50", {"a": "0.49.2"}, True), ("a < 0.50", {"a": "0.50"}, False), ("a >= 7.10", {"a": "7.9"}, False),
        ("a < 3", {"a": "unknown"}, None), ("a == false", {"a": False}, True),
        ("a not_in b", {"a": ["gfx1031"], "b": ["gfx1030"]}, True), ("a not_in b", {"a": ["gfx1031"]}, None),
    ],
)  # fmt: skip
def test_predicates(term: str, known: dict[str, object], so: bool | None) -> None:
    """What is not known neither proves nor excludes."""
    assert causes.holds([term], known) is so


def test_facts_from_others(tmp_path: Path) -> None:
    """doctor's report, a bundle, and AMD's rocm examine are read; other JSON is refused."""
    examined = {
        "os_family": "linux", "gpus": [{"gfx_target": "gfx1031", "is_amd": True}], "framework": "pytorch",
        "framework_version": "2.9.0", "framework_rocm_version": "7.2", "framework_arch_list": ["gfx1030"],
        "kfd": {"exists": True, "user_can_read": False, "user_can_write": False}, "env": {"A": "b"},
    }  # fmt: skip
    found = facts.of_report(examined)
    assert found["access.kfd"] == "refused" and found["torch.kind"] == "rocm" and found["environ.A"] == "b"
    text = advice.explain("HIP error: invalid device function", lang="en", facts=found).format()
    assert "proved: the installed PyTorch holds no code for gfx1031" in text
    assert facts.of_report({"facts": {"torch.kind": "cuda"}}) == {"torch.kind": "cuda"}
    with pytest.raises(ValueError, match="no facts"):
        facts.of_report([])


def test_the_number_of_a_missing_library_is_compared_with_the_installed_rocm() -> None:
    """Another ROCm is proved by both numbers; the same one, or none known, leaves a command that tells."""
    failed = "ImportError: libamdhip64.so.6: cannot open shared object file: No such file or directory"
    known = ({"rocm.versions": ["7.2.0"]}, {"rocm.versions": ["6.4.1", "7.2.0"]}, {})
    other, same, unknown = [advice.explain(failed, lang="en", facts=one).format() for one in known]
    assert "proved: the program was built for another major" in other and "(log.rocm: 6; rocm.majors: 7)" in other
    assert "proved" not in same + unknown and "check: find / -name 'libamdhip64*'" in same and "{" not in unknown


def test_a_torch_for_rocm_is_not_reinstalled() -> None:
    """A library of CUDA's is asked for: by torch where that is a CUDA build, else by an extension."""
    failed = "rocm gfx1030\nOSError: libtorch_cuda.so: cannot open shared object file: No such file or directory"
    texts = [advice.explain(failed, lang="en", facts={"torch.kind": kind}).format() for kind in ("rocm", "cuda")]
    assert "reinstall the package that asks for" in texts[0] and "install --force-reinstall torch" in texts[1]


def test_a_library_has_an_owner_and_architectures(tmp_path: Path) -> None:
    """Of a wheel, of a package; and which targets its code objects are for."""
    path = "/opt/rocm/lib/librocblas.so.5"
    write(tmp_path, path, "x\0hipv4-amdgcn-amd-amdhsa--gfx1030\0y\0hipv4-amdgcn-amd-amdhsa--gfx942\0")
    write(tmp_path, "/var/lib/dpkg/info/rocblas.list", f"/opt/rocm/lib\n{path}")
    here = machine(tmp_path)
    assert facts.library_facts(here, path)["archs"] == ["gfx1030", "gfx942"]
    assert facts.owner(here, path) == "apt rocblas"
    build(tmp_path, LAPTOP)
    known = advice.facts_here("", path, Site(machine(tmp_path), []))
    text = advice.explain("HIP error: invalid device function", lang="en", facts=known).format()
    assert "proved: the library that the log names holds no code for gfx1101" in text
    assert "library.archs: gfx1030 gfx942" in text
    assert facts.owner(here, "/v/lib/python3.12/site-packages/torch/lib/libamdhip64.so") == "pip torch"


def test_the_probe_is_quick_and_tells_nothing_secret(tmp_path: Path) -> None:
    """Under a second; of the kernel's command line the parameters of GPUs, of variables none with a secret."""
    build(tmp_path, LAPTOP)
    write(
        tmp_path,
        "/proc/cmdline",
        "BOOT_IMAGE=/vm cryptdevice=UUID=12-34 amdgpu.ppfeaturemask=0xff iommu=pt password=x",
    )
    started = time.process_time()
    found = facts.probe(Site(machine(tmp_path, HF_TOKEN="hf_secretsecret", HSA_XNACK="1")))
    assert time.process_time() - started < 1
    assert found["system.cmdline"] == ["amdgpu.ppfeaturemask=0xff", "iommu=pt"] and found["environ.HSA_XNACK"] == "1"
    assert "secret" not in json.dumps(found) and "UUID" not in json.dumps(found)


@pytest.mark.parametrize("what", ["another GPU", "no GPU of AMD"])
def test_a_failure_elsewhere_is_not_asked_about_here(tmp_path: Path, what: str) -> None:
    """The text names a GPU that is not here, or nothing here could fail so."""
    build(tmp_path, LAPTOP if what == "another GPU" else [], devices=False)
    arch = "gfx906" if what == "another GPU" else ""
    assert advice.facts_here(arch, site=Site(machine(tmp_path), [])) == {}

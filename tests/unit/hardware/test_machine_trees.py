"""hardware: four recorded machines, read without torch."""

import os

import pytest

from gfxgraph.hardware import defect_environment, facts, findings, software
from gfxgraph.hardware.access import container, device_nodes
from gfxgraph.hardware.architectures import architectures, name_of_override, name_of_target
from gfxgraph.hardware.chosen_device import device_info
from gfxgraph.hardware.facts import Site
from gfxgraph.hardware.findings import CheckResult, CheckState
from gfxgraph.hardware.software import find_rocm, find_torch
from gfxgraph.hardware.time_limit import Aside
from gfxgraph.hardware.topology import gpus
from tests.unit.hardware.trees import LAPTOP, MI300X, Card, build, machine, write


def said(site: Site, name: str = "") -> list[CheckResult]:
    """What doctor says of this machine, of one subject if named."""
    known, lacking = findings.probe(site)
    assert lacking == []
    return [one for one in findings.of(known, site.machine.environ) if one.name.startswith(name)]


def test_a_laptop_has_its_card_before_its_igpu(tmp_path):
    """The discrete GPU is the device that decisions are made for, wherever KFD lists it."""
    build(tmp_path, list(reversed(LAPTOP)))
    found = device_info(machine=machine(tmp_path))
    assert (found.arch, found.name, found.cu, found.vram_mb) == ("gfx1101", "AMD Radeon RX 7700S", 32, 8192)
    assert (found.family, found.wavefront, found.matrix, found.source) == ("RDNA3", 32, "wmma", "kfd")
    assert device_info(1, machine(tmp_path)).arch == "gfx1103"


def test_eight_mi300x(tmp_path):
    """Eight nodes, XGMI links counted, wave64, fnuz fp8; CUs from SIMDs by four."""
    build(tmp_path, MI300X)
    found = gpus(machine(tmp_path))
    assert [gpu.arch for gpu in found] == ["gfx942"] * 8
    first = found[0]
    assert (first.cu, first.wavefront, first.pci) == (304, 64, "0000:0c:00.0")
    assert first.architecture.fp8 == "fnuz"


def test_no_gpu(tmp_path):
    """A machine with CPU nodes only has no GPU, and doctor is not red about it."""
    build(tmp_path, [], devices=False)
    assert gpus(machine(tmp_path)) == []
    assert device_info(machine=machine(tmp_path)).arch == ""
    found = said(Site(machine(tmp_path), search=[]))
    assert found and all(finding.state is not CheckState.RED for finding in found)


def test_a_container_without_kfd_gets_the_docker_flags(tmp_path):
    """sysfs shows the card, /dev does not: the mend is a docker option, not a group."""
    build(tmp_path, LAPTOP[:1], devices=False)
    write(tmp_path, "/.dockerenv")
    (finding,) = said(Site(machine(tmp_path)), "device files")
    assert finding.state is CheckState.RED
    assert "--device=/dev/kfd --device=/dev/dri" in finding.fix
    assert "container" in finding.en and "容器" in finding.zh


def test_permission_follows_mode_and_group(tmp_path):
    """0660 with a foreign group is refused; being in the group opens it."""
    build(tmp_path, LAPTOP[:1])
    gid = os.stat(tmp_path / "dev/kfd").st_gid
    for name in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / name).chmod(0o660)
    stranger = machine(tmp_path)
    assert [node.may_open for node in device_nodes(stranger)] == [False, False]
    (finding,) = said(Site(stranger), "device files")
    assert finding.state is CheckState.RED and finding.fix.startswith("sudo usermod -aG ")
    assert all(node.may_open for node in device_nodes(machine(tmp_path, groups=frozenset({gid}))))


@pytest.mark.parametrize(
    "name, kind",
    [("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/dev/dxg", "wsl"), ("/etc/hosts", "")],
)
def test_containers_are_told_apart(tmp_path, name, kind):
    """Each runtime leaves its own mark."""
    write(tmp_path, name)
    assert container(machine(tmp_path)) == kind


def test_overrides(tmp_path):
    """HSA_OVERRIDE_GFX_VERSION changes what programs see; GFXGRAPH_ARCH what we plan for."""
    build(tmp_path, [Card(100301, 80, 12 << 30, 3, 0x73DF, "AMD Radeon RX 6700 XT")])
    found = device_info(machine=machine(tmp_path, HSA_OVERRIDE_GFX_VERSION="10.3.0"))
    assert (found.arch, found.physical_arch, found.source) == (
        "gfx1030",
        "gfx1031",
        "HSA_OVERRIDE_GFX_VERSION",
    )
    per_node = device_info(machine=machine(tmp_path, HSA_OVERRIDE_GFX_VERSION_1="10.3.0"))
    assert per_node.arch == "gfx1030"
    asked = device_info(machine=machine(tmp_path, GFXGRAPH_ARCH="gfx942"))
    assert (asked.arch, asked.wavefront, asked.cu) == ("gfx942", 64, 40)


def test_an_override_of_another_generation_is_red(tmp_path):
    """RDNA2 told to run RDNA3 code; the right value, and one that is no version, are told apart from it."""
    build(tmp_path, [Card(100301, 80, 12 << 30, 3, 0x73DF)])
    (finding,) = said(Site(machine(tmp_path, HSA_OVERRIDE_GFX_VERSION="11.0.0")), "override")
    assert finding.state is CheckState.RED
    assert "another family" in finding.en and finding.fix == "unset HSA_OVERRIDE_GFX_VERSION"
    (fine,) = said(Site(machine(tmp_path, HSA_OVERRIDE_GFX_VERSION="10.3.0")), "override")
    assert fine.state is CheckState.GREEN and fine.en == "gfx1031 runs as gfx1030"
    (misspelt,) = said(Site(machine(tmp_path, HSA_OVERRIDE_GFX_VERSION="gfx1030")), "override")
    assert misspelt.state is CheckState.RED and "HSA_OVERRIDE_GFX_VERSION=gfx1030" in misspelt.en


def test_a_link_without_atomics_is_named(tmp_path):
    """CRAT flags 4 and 8 on the PCIe link mean no atomics."""
    build(tmp_path, [Card(100300, 120, 16 << 30, 3, 0x73BF, links=[(2, 0b1101)])])
    (finding,) = said(Site(machine(tmp_path)), "PCIe")
    assert finding.state is CheckState.AMBER and "gfx1030 at 0000:03:00.0" in finding.en


def test_host_settings_that_hurt_several_gpus(tmp_path):
    """An IOMMU without pass-through is amber with eight GPUs, silent with one."""
    for cards, names in ((MI300X, ["IOMMU"]), (MI300X[:1], [])):
        root = tmp_path / str(len(cards))
        build(root, cards)
        write(root, "/sys/class/iommu/ivhd0/x")
        write(root, "/proc/cmdline", "quiet splash")
        site = Site(machine(root))
        assert [f.name for f in said(site, "IOMMU")] == names


def test_what_amd_asks_of_an_instinct_host(tmp_path):
    """NUMA balancing, and variables that are not set; nothing on another card."""
    write(tmp_path, "/proc/sys/kernel/numa_balancing", "1\n")
    build(tmp_path, MI300X)
    numa, variables = said(Site(machine(tmp_path, GPU_MAX_HW_QUEUES="4")), "speed")
    assert (numa.state, variables.state) == (CheckState.AMBER, CheckState.GREEN) and "numa_balancing" in numa.fix
    assert "HIP_FORCE_DEV_KERNARG=1" in variables.en and "GPU_MAX_HW_QUEUES" not in variables.en
    other = tmp_path / "other"
    build(other, LAPTOP)
    assert said(Site(machine(other)), "speed") == []


def test_a_driver_many_releases_older_than_rocm_is_amber(tmp_path):
    """DKMS 6.7 came with ROCm 6.1; with ROCm 7.1 installed that is too far."""
    build(tmp_path, MI300X)
    write(tmp_path, "/sys/module/amdgpu/version", "6.7.0")
    write(tmp_path, "/opt/rocm-7.1.0/.info/version", "7.1.0-42")
    (tmp_path / "opt/rocm").symlink_to("rocm-7.1.0")
    (finding,) = said(Site(machine(tmp_path)), "kernel driver")
    assert finding.state is CheckState.AMBER and "6.1" in finding.en and "7.1" in finding.en


def test_rocm_trees_side_by_side(tmp_path):
    """The tree that /opt/rocm points at comes first, and is listed once."""
    for version in ("6.4.1", "7.2.0"):
        write(tmp_path, f"/opt/rocm-{version}/.info/version", f"{version}-1")
        write(tmp_path, f"/opt/rocm-{version}/lib/libamdhip64.so")
    (tmp_path / "opt/rocm").symlink_to("rocm-6.4.1")
    found = find_rocm(machine(tmp_path))
    assert [(one.path, one.version) for one in found] == [
        ("/opt/rocm", "6.4.1"),
        ("/opt/rocm-7.2.0", "7.2.0"),
    ]


@pytest.mark.parametrize(
    "folder, path, name, rocm",
    [
        ("/opt/runtime/lib", "/nowhere:/opt/runtime/lib", "libamdhip64.so.6.4.60403", (6, 4)),
        ("/opt/rocm-7.2/lib", "", "libamdhip64.so.7.2.70204-3852a3e", (7, 2)),
        ("/opt/runtime/lib", "/opt/runtime/lib", "libamdhip64.so.7.15.0", (10, 0)),
        ("/opt/runtime/lib", "/opt/runtime/lib", "libamdhip64.so.7", ()),
    ],
)
def test_the_version_of_a_runtime_without_torch(tmp_path, monkeypatch, folder, path, name, rocm):
    """Where neither torch nor a ROCm tree says it, the runtime's own file does, also outside /opt/rocm."""
    write(tmp_path, f"{folder}/{name}")
    if "." in name.partition(".so.")[2]:
        (tmp_path / folder[1:] / "libamdhip64.so.9").symlink_to(name)
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    found = defect_environment._detect(machine(tmp_path), software.Torch("2.13.0+cpu"))
    assert found.rocm == rocm
    assert found.hip[:2] == ((7, 15) if rocm == (10, 0) else rocm)


@pytest.mark.parametrize(
    "library_path, tail", [("", ""), ("/opt/other", "; by LD_LIBRARY_PATH programs load HIP 7.2.53211")]
)
def test_a_distributions_rocm_has_its_runtimes_version(tmp_path, monkeypatch, library_path, tail):
    """Debian's tree says no version of its own; what LD_LIBRARY_PATH puts before it is said."""
    write(tmp_path, "/usr/lib/x86_64-linux-gnu/libamdhip64.so.6.4.43484")
    write(tmp_path, "/opt/other/libamdhip64.so.7.2.53211")
    monkeypatch.setenv("LD_LIBRARY_PATH", library_path)
    (found,) = said(Site(machine(tmp_path)), "ROCm")
    assert found.en == f"6.4 in /usr{tail}"


@pytest.mark.parametrize(
    "text, kind",
    [
        (
            "__version__ = '2.11.0+rocm7.2'\nhip: str | None = '7.2.26015-abc'\ncuda: str | None = None\n",
            "rocm",
        ),
        ("__version__ = '2.11.0+cu130'\nhip = None\ncuda = '13.0'\n", "cuda"),
        ("__version__ = '2.11.0+cpu'\nhip = None\ncuda = None\n", "cpu"),
    ],
)
def test_torch_is_read_and_not_imported(tmp_path, text, kind):
    """The build's kind comes from version.py; the package's own code never runs."""
    write(tmp_path, "/torch/__init__.py", "raise SystemExit('imported')")
    write(tmp_path, "/torch/version.py", text)
    assert find_torch([str(tmp_path)]).kind == kind


def test_no_torch(tmp_path):
    """An empty path has none."""
    assert find_torch([str(tmp_path)]).kind == "none"


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments"),
        ({"AMD_SERIALIZE_KERNEL": "3"}, "one at a time"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, "hides every GPU"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, "one after the other"),
        ({"HSA_XNACK": "1"}, "cannot retry"),
    ],
)
def test_variables_that_hurt(tmp_path, environ, words):
    """Each is named with its value and how to remove it."""
    build(tmp_path, [Card(100300, 120, 16 << 30, 3, 0x73BF)])
    (finding,) = said(Site(machine(tmp_path, **environ)), "variables")
    assert words in finding.en and finding.fix and finding.state is not CheckState.GREEN


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
        {"AMD_SERIALIZE_KERNEL": "0"},
        {"AMD_LOG_LEVEL": "1"},
    ],
)
def test_variables_that_do_not_hurt(tmp_path, environ):
    """Harmless values stay unmentioned."""
    assert said(Site(machine(tmp_path, **environ)), "variables") == []


def test_a_part_that_hangs_is_reported_in_time(tmp_path, monkeypatch):
    """doctor never waits for longer than the limit, and goes on with the other parts."""
    import threading

    never = threading.Event()

    def stuck(site: Site) -> dict[str, object]:
        never.wait()
        return {}

    monkeypatch.setattr(facts, "PARTS", (stuck, facts.access_facts))
    known, (finding,) = findings.probe(Site(machine(tmp_path)), 0.05)
    assert finding.state is CheckState.AMBER and "did not answer" in finding.en and known["access.kfd"] == "missing"
    with pytest.raises(TimeoutError):
        Aside().within(0.05, never.wait)
    never.set()


def test_a_probe_passes_its_answer_and_its_error_on():
    """The thread in which it runs is not seen."""
    assert Aside().within(5, lambda: 7) == 7
    with pytest.raises(KeyError, match="gone"):
        Aside().within(5, lambda: {}["gone"])


def test_migraphx_is_found_in_a_rocm_tree(tmp_path):
    """AMD's compiler is a library more often than a Python package."""
    assert not software.migraphx_available(machine(tmp_path))
    (tmp_path / "opt/rocm-7.2.0/lib").mkdir(parents=True)
    (tmp_path / "opt/rocm-7.2.0/lib/libmigraphx.so").touch()
    assert software.migraphx_available(machine(tmp_path))


def test_the_table_covers_gfx803_to_gfx1250():
    """Every family is there, widths and LDS are plausible, overrides name known targets."""
    table = architectures()
    assert {
        "gfx803",
        "gfx906",
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx1030",
        "gfx1151",
        "gfx1201",
        "gfx1250",
    } <= set(table)
    for name, known in table.items():
        assert known.wavefronts and set(known.wavefronts) <= {32, 64}, name
        assert known.lds_kib in (64, 160, 320), name
        assert known.matrix in ("none", "mfma", "wmma"), name
        assert known.bf16 in ("matrix", "emulated") and known.fp8 in ("none", "fnuz", "ocp"), name
        assert not known.override or name_of_override(known.override) in table, name


@pytest.mark.parametrize(
    "version, name", [(100300, "gfx1030"), (90010, "gfx90a"), (90012, "gfx90c"), (110501, "gfx1151"), (0, "")]
)
def test_kfd_versions_become_names(version, name):
    """The stepping is written in hexadecimal."""
    assert name_of_target(version) == name

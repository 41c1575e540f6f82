"""diagnostics.catalogue: every entry is complete, in both languages, and can be found."""

import importlib
import re
import tomllib
from pathlib import Path

from gfxgraph.diagnostics import causes, entries, situation, statuses
from gfxgraph.diagnostics.entries import FOLDER
from gfxgraph.diagnostics.expression_index import names

FILES = sorted(FOLDER.glob("*.toml"))
KEYS = {
    "code",
    "since",
    "fields",
    "aliases",
    "rank",
    "patterns",
    "weak",
    "unless",
    "refuted",
    "combos",
    "cause",
    "sources",
    "en",
    "zh",
}
PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
COMMAND = re.compile(
    r"(?:sudo |export |unset |pip install |docker run |cmake (?=-))[!-'*+\--:<-~]+"
    r"|gfxgraph (?:run|explain|doctor|device|port|check)\b"
    r"|--[a-z][\w-]+|\b[A-Z][A-Z0-9]+_[A-Z0-9_]+(?:=[!-'*+\--:<-~]+)?",
    re.ASCII,
)
LABELS = """out_of_memory illegal_address no_kernel_image hip_module_load wrong_arch_override gpu_unsupported
no_device hsa_init_failed kfd_permission docker_device_missing pcie_atomics driver_version_mismatch
framework_not_rocm missing_shared_library symbol_version_mismatch hip_toolchain_missing cmake_arch_missing
device_asm_unsupported wavefront_mismatch rocblas_missing_tensile blas_error hipblaslt_unsupported_arch
miopen_find_db miopen_compile_failed triton_compile_amd triton_lds_overflow ck_not_available flash_attn_rdna
aiter_unsupported bnb_rocm_binary bf16_unsupported fp8_unsupported rccl_error peer_access_iommu xnack_required
launch_failure invalid_configuration hip_invalid_value cooperative_launch hsa_queue_abort gpu_hang
ring_timeout_reset capture_unsupported_op capture_invalidated graph_runtime_error alloc_conf_rejected""".split()
OLD_SLUGS = """no_kernel_image out_of_memory illegal_address bf16_unsupported wrong_arch wave64_ignored
aiter_on_rdna invalid_configuration""".split()


def table(path):
    return tomllib.loads(path.read_text())


def test_an_entry_is_whole():
    """Name, keys, and for each language the same parts, placeholders, notes and hints."""
    for path in FILES:
        an_entry_is_whole(path)


OF_DOCTOR = {"name", "state", "shown_if", "each"}


def an_entry_is_whole(path):
    data = table(path)
    assert data["code"] == path.stem
    assert data["since"]
    assert set(data) <= KEYS
    en, zh = data["en"], data["zh"]
    assert set(en) == set(zh) and {"title", "what", "why", "do"} <= set(en)
    assert set(en.get("notes", {})) == set(zh.get("notes", {}))
    assert "{" not in en["title"] + zh["title"], "the first line never varies"
    for key in ("what", "why", "do"):
        assert fields_in(en[key]) == fields_in(zh[key]) <= {*data.get("fields", []), "arch", "override", "index"}
    assert len(data.get("cause", [])) <= 6
    for cause in [*data.get("cause", []), *machine_causes()]:
        assert (
            {"en", "zh"}
            <= set(cause)
            <= {"log", "facts", "check", "en", "zh", "where", "sources", "codes", "decides", *OF_DOCTOR}
        )
        least = {"why"} if cause.get("state") == "green" else {"do"}
        assert least <= set(cause["en"]) == set(cause["zh"]) <= {"why", "do", "means"}
        assert ("check" in cause) == ("means" in cause["en"])
        assert causes.holds(cause.get("facts", ()), {}) is (None if cause.get("facts") else True)
    for left, right in zip(en["do"], zh["do"]):
        conditions = re.findall(r"@(!?[a-z_]+): ", left)
        assert conditions == re.findall(r"@(!?[a-z_]+): ", right)
        assert {name.lstrip("!") for name in conditions} <= situation.CONDITIONS


def machine_causes():
    """Causes that a machine proves: of classes that exist."""
    rows = tomllib.loads((FOLDER.parent / "machine_causes.toml").read_text())["cause"]
    assert all(set(row.get("codes", "").split()) <= {path.stem for path in FILES} for row in rows)
    return rows


def fields_in(value):
    text = value if isinstance(value, str) else "\n".join(value)
    return set(PLACEHOLDER.findall(text))


def test_both_languages_give_the_same_commands():
    """What can be pasted is not translated: options, variables and commands agree step by step."""
    for path in FILES:
        both_languages_give_the_same_commands(path)


def both_languages_give_the_same_commands(path):
    data = table(path)
    en, zh = data["en"]["do"], data["zh"]["do"]
    en, zh = ([one] if isinstance(one, str) else one for one in (en, zh))
    assert len(en) == len(zh)
    for left, right in zip(en, zh):
        assert set(COMMAND.findall(left)) == set(COMMAND.findall(right))


def test_chinese_is_chinese():
    """Titles and reasons are written in Chinese, with Chinese punctuation between Chinese words."""
    for path in FILES:
        chinese_is_chinese(path)


def chinese_is_chinese(path):
    zh = table(path)["zh"]
    for key in ("title", "what", "why"):
        if PLACEHOLDER.sub("", zh[key]).strip(" .:：()（）"):
            assert re.search(r"[\u4e00-\u9fff]", zh[key]), key
        assert not re.search(r"[\u4e00-\u9fff][,;:](?=[\u4e00-\u9fff])", zh[key]), key


def test_every_label_and_every_old_slug_is_known():
    """Codes are the labels; slugs of older releases stay as aliases."""
    index = names()
    known = set(index.ranks) | set(index.aliases)
    assert set(LABELS) <= set(index.ranks) == {path.stem for path in FILES}
    assert set(OLD_SLUGS) <= known


def test_aliases_point_at_one_entry_and_hide_none():
    """No alias is also a code, and none is claimed twice."""
    claimed = [alias for path in FILES for alias in table(path).get("aliases", [])]
    assert len(claimed) == len(set(claimed))
    assert not set(claimed) & {path.stem for path in FILES}


def test_every_status_has_an_entry_and_both_meanings():
    """Rows of the code tables lead to entries that exist."""
    known = {path.stem for path in FILES}
    rows = statuses.every()
    assert len([row for row in rows if row.api == "HIP"]) >= 80
    for row in rows:
        assert row.entry in known, row.name
        assert row.en and row.zh and row.en != row.zh
    names = [row.name for row in rows]
    assert len(names) == len(set(names))


def test_pages_hold_every_entry_in_both_languages(monkeypatch):
    """The pages made for the documentation leave nothing out, and the list leads to each."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "tools")
    pages = importlib.import_module("make_error_pages")
    for lang in ("en", "zh"):
        listed = pages.markdown_index(lang)
        for code in entries.codes():
            assert f"]({code}.md)" in listed
            text = pages.markdown(code, lang)
            parts = ("what:", "why:", "do:") if lang == "en" else ("现象：", "原因：", "处理：")
            assert text.startswith(f"# {code}\n") and all(part in text for part in parts)


def test_an_entry_names_its_sources():
    """Where the condition comes from: a program's file, a manual, or the file here that raises it."""
    for path in FILES:
        an_entry_names_its_sources(path)


def an_entry_names_its_sources(path):
    sources = table(path).get("sources", [])
    assert sources
    for source in sources:
        file = FOLDER.parents[3] / source
        if source.startswith("src/") and file.suffix == ".py":
            assert f'"{path.stem}"' in file.read_text(), source
        elif source.startswith(("src/", "docs/")):
            assert file.exists(), source

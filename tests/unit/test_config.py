"""config: every variable, its good and its bad values."""

import pytest

from gfxgraph import config
from gfxgraph.types import GuardTier, OnUnsafe, ReplayMode


def test_empty_environment_gives_the_defaults():
    """With nothing set, the bridge is off and nothing is complained about."""
    assert config.load({}) == config.Config()


@pytest.mark.parametrize(
    "variable, value, field, expected",
    [
        ("GFXGRAPH", "1", "activation", "on"),
        ("GFXGRAPH", "ON", "activation", "on"),
        ("GFXGRAPH", "debug", "activation", "debug"),
        ("GFXGRAPH", "validate", "activation", "validate"),
        ("GFXGRAPH", "0", "activation", "off"),
        ("GFXGRAPH_ALLOW_CUDA", "1", "allow_cuda", True),
        ("GFXGRAPH_ON_UNSAFE", "pin", "on_unsafe", OnUnsafe.PIN),
        ("GFXGRAPH_SIMULATE", "hip", "simulate", "hip"),
        ("GFXGRAPH_VALIDATE_REPLAYS", "3", "validate_replays", 3),
        ("GFXGRAPH_GUARD", "tier2", "guard", GuardTier.LOCALIZE),
        ("GFXGRAPH_GUARD", "3", "guard", GuardTier.DEEP),
        ("GFXGRAPH_GUARD", "safe", "guard", GuardTier.SAFE),
        ("GFXGRAPH_ARCH", "gfx90a:sramecc+:xnack-", "arch", "gfx90a"),
        ("GFXGRAPH_ARCH", "10.3.1", "arch", "gfx1031"),
        ("GFXGRAPH_ARCH", "9.0.10", "arch", "gfx90a"),
        ("GFXGRAPH_REPLAY_MODE", "adaptive", "replay_mode", ReplayMode.ADAPTIVE),
        ("GFXGRAPH_REPLAY_HOT_MODE", "1", "replay_mode", ReplayMode.HOT),
        ("GFXGRAPH_VRAM_CAP", "0.5", "vram_cap", 0.5),
        ("GFXGRAPH_LIB", "/x/lib.so", "lib", "/x/lib.so"),
        ("HGB_LOG_LEVEL", "warning", "log_level", "warn"),
        ("GFXGRAPH_LOG", "debug", "log_level", "debug"),
        ("GFXGRAPH_PROFILE", "1", "profile", True),
        ("GFXGRAPH_TRUSTED_REPLAY_THRESHOLD", "4", "trusted_replay_threshold", 4),
        ("GFXGRAPH_TRUSTED_REPLAY_SAMPLE_INTERVAL", "2", "trusted_replay_sample_interval", 2),
        ("GFXGRAPH_DIAG", "0", "diag", False),
        ("GFXGRAPH_WAVE", "auto", "wave", "auto"),
        ("GFXGRAPH_NO_WAVE", "1", "no_wave", True),
        ("GFXGRAPH_ENVIRONMENT", "env.json", "environment", "env.json"),
        ("SGLANG_DISABLE_GFXGRAPH", "1", "sglang_disabled", True),
        ("SGLANG_RDNA2_KERNELS", "1", "activation", config.Activation.ON),
        ("MIGRAPHX_ENABLE_HIPGRAPH", "enable", "migraphx_graphs", True),
        ("GFXGRAPH_REPORT", "seen", "report", "seen"),
        ("GFXGRAPH_TRANSFORMERS", "on", "transformers", True),
    ],
)
def test_a_good_value_is_read(variable, value, field, expected):
    """Each variable sets its own field and raises no problem."""
    settings = config.load({variable: value})
    assert getattr(settings, field) == expected
    assert settings.problems == ()


@pytest.mark.parametrize(
    "variable, value",
    [
        ("GFXGRAPH", "maybe"),
        ("GFXGRAPH_ALLOW_CUDA", "2"),
        ("GFXGRAPH_ON_UNSAFE", "ignore"),
        ("GFXGRAPH_VALIDATE_REPLAYS", "-1"),
        ("GFXGRAPH_GUARD", "4"),
        ("GFXGRAPH_LANG", "klingon"),
        ("GFXGRAPH_ARCH", "rdna2"),
        ("GFXGRAPH_ARCH", "gfx10300000"),
        ("GFXGRAPH_REPLAY_MODE", "fast"),
        ("GFXGRAPH_VRAM_CAP", "0"),
        ("GFXGRAPH_VRAM_CAP", "nan"),
        ("GFXGRAPH_VRAM_CAP", "80"),
        ("HGB_LOG_LEVEL", "loud"),
        ("GFXGRAPH_TRUSTED_REPLAY_SAMPLE_INTERVAL", "0"),
        ("GFXGRAPH_WAVE", "64"),
    ],
)
def test_a_bad_value_is_collected_and_the_default_kept(variable, value):
    """A refused value leaves everything at its default and names variable and value."""
    settings = config.load({variable: value})
    (problem,) = settings.problems
    assert (problem.variable, problem.value) == (variable, value)
    assert problem.allowed == config.VARIABLES[variable]
    assert settings == config.Config(problems=settings.problems)


@pytest.mark.parametrize(
    "environ, lang",
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "zh_TW.UTF-8"}, "zh"),
        ({"GFXGRAPH_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"GFXGRAPH_LANG": "zh-Hans"}, "zh"),
        ({"GFXGRAPH_LANG": "xx", "LANG": "zh_CN.UTF-8"}, "zh"),
    ],
)
def test_language_comes_from_the_setting_else_the_locale(environ, lang):
    """GFXGRAPH_LANG wins; LC_ALL goes before LANG, as in the C library."""
    assert config.language_of(environ) == lang


def test_debug_activation_logs_at_debug_unless_told_otherwise():
    """GFXGRAPH=debug means verbose logging; HGB_LOG_LEVEL still wins."""
    assert config.load({"GFXGRAPH": "debug"}).log_level == "debug"
    assert config.load({"GFXGRAPH": "debug", "HGB_LOG_LEVEL": "error"}).log_level == "error"


def test_sglang_can_switch_it_off():
    """SGLANG_DISABLE_GFXGRAPH=1 overrules GFXGRAPH=1."""
    assert config.load({"GFXGRAPH": "1"}).is_on
    assert not config.load({"GFXGRAPH": "1", "SGLANG_DISABLE_GFXGRAPH": "1"}).is_on


def test_gpu_variables_are_picked_by_prefix():
    """Reports carry what changes GPU behaviour and nothing private."""
    picked = config.gpu_variables({"HSA_XNACK": "1", "AWS_SECRET": "x", "HIP_VISIBLE_DEVICES": "0"})
    assert picked == {"HIP_VISIBLE_DEVICES": "0", "HSA_XNACK": "1"}


def test_sglangs_switch_asks_and_is_overruled():
    """SGLANG_RDNA2_KERNELS=1 asks for the bridge; GFXGRAPH=0 and SGLANG_DISABLE_GFXGRAPH=1 are heard before it."""
    assert config.load({"SGLANG_RDNA2_KERNELS": "1"}).is_on
    for other in ({"GFXGRAPH": "0"}, {"SGLANG_DISABLE_GFXGRAPH": "1"}):
        assert not config.load({"SGLANG_RDNA2_KERNELS": "1", **other}).is_on


def test_hgb_debug_asks_for_the_log_alone():
    """HGB_DEBUG=1 logs at debug, switches nothing on, and gives way to HGB_LOG_LEVEL."""
    settings = config.load({"HGB_DEBUG": "1"})
    assert settings.log_level is config.LogLevel.DEBUG and not settings.is_on
    assert config.load({"HGB_DEBUG": "1", "HGB_LOG_LEVEL": "error"}).log_level is config.LogLevel.ERROR
    assert config.load({"HGB_DEBUG": "0"}).log_level is config.LogLevel.WARN
    assert [each.variable for each in config.load({"HGB_DEBUG": "perhaps"}).problems] == ["HGB_DEBUG"]


def test_a_default_is_set_once(monkeypatch):
    """And what somebody set stays."""
    monkeypatch.setenv("GFXGRAPH_NOBODYS", "for the way back")
    monkeypatch.delenv("GFXGRAPH_NOBODYS")
    monkeypatch.setenv("GFXGRAPH_SOMEBODYS", "mine")
    assert config.set_default("GFXGRAPH_NOBODYS", "ours") and not config.set_default("GFXGRAPH_SOMEBODYS", "ours")
    assert config.variables(["GFXGRAPH_NOBODYS", "GFXGRAPH_SOMEBODYS"]) == {
        "GFXGRAPH_NOBODYS": "ours",
        "GFXGRAPH_SOMEBODYS": "mine",
    }


@pytest.mark.parametrize(
    ("value", "folder", "is_refused"),
    [
        ("~/x", "/home/me/x", False),
        ("~", "/home/me", False),
        ("/a/~b", "/a/~b", False),
        ("~no-such-user/x", "", True),
    ],
)
def test_a_home_that_the_shell_left_alone_is_expanded(value, folder, is_refused):
    """In quotes ``~`` arrives as it is; it never names a folder in the current one."""
    settings = config.load({"GFXGRAPH_LIB": value, "HOME": "/home/me"})
    assert settings.lib == folder
    assert [problem.variable for problem in settings.problems] == ["GFXGRAPH_LIB"] * is_refused

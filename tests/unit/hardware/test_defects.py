"""hardware.defects: which rows apply where, and what they add up to."""

import json

import pytest

from gfxgraph import errors
from gfxgraph.hardware import versions
from gfxgraph.hardware.defect_environment import Environment, detect, from_dict
from gfxgraph.hardware.defects import applicable, decide, rows


def env(rocm="", torch="2.11.0", archs=("gfx1030",), platform="hip", n_gpus=1, **environ):
    return Environment(platform, (), versions.parse(rocm), versions.parse(torch), archs, n_gpus, environ)


def ids(environment):
    return {row.id for row in applicable(environment)}


@pytest.mark.parametrize(
    "row, inside, outside",
    [
        ("illegal-calls-not-reported", env("7.13"), env("7.14")),
        ("watchdog-query-kills-capture", env("7.2.0"), env("7.2.2")),
        (
            "wrong-replays-one-process-in-five",
            env("7.2.3", archs=("gfx942",)),
            env("7.1.1", archs=("gfx942",)),
        ),
        (
            "wrong-replays-one-process-in-five",
            env("7.2", archs=("gfx942",)),
            env("7.2.1", archs=("gfx1030",)),
        ),
        ("stale-values-in-long-graphs", env("7.2.4", archs=("gfx1201",)), env("7.2.4", archs=("gfx1100",))),
        ("stale-host-copies", env("7.2.4", archs=("gfx950",)), env("7.2.4", archs=("gfx942",))),
        ("deep-graphs-overflow-the-stack", env("7.11"), env("7.12")),
        ("failed-capture-leaves-stream-stuck", env("6.4"), env("10.0")),
        (
            "update-crashes-when-memory-is-full",
            env("7.2", archs=("gfx1100",)),
            env("6.4.3", archs=("gfx1100",)),
        ),
        ("set-params-ignored", env("6.1"), env("6.1", DEBUG_CLR_GRAPH_PACKET_CAPTURE="0")),
        ("graph-destroy-crashes", env("6.3.2"), env("6.4")),
        ("lazy-destroy-hangs-collectives", env("6.2", n_gpus=8), env("6.2", n_gpus=1)),
        ("duplicate-node-ids", env("7.2.4"), env("7.2.4", DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING="0")),
        ("child-graphs-crash", env("7.12"), env("7.13")),
        ("disabled-nodes-deadlock", env("7.14"), env("10.0")),
        ("captured-allocation-unmapped", env("7.14"), env("7.13")),
        ("stream-memory-ops-escape", env("7.2"), env("10.0")),
        ("host-functions-refused", env("7.0.1"), env("7.0.2")),
        ("captured-sync-missing", env("7.0"), env("7.2.1")),
        ("replay-hang-on-v620", env("10.0"), env("7.2.3")),
        (
            "relaxed-capture-crashes-in-worker-threads",
            env("7.2", archs=("gfx1036",)),
            env("7.2", archs=("gfx942",)),
        ),
        ("crash-at-exit", env("7.2", archs=("gfx1031",)), env("7.2")),
        ("full-graphs-fault-on-rdna", env("7.2", archs=("gfx1201",)), env("7.2")),
        ("capture-timeout-on-strix-halo", env("7.2", archs=("gfx1151",)), env("7.2")),
        ("first-replays-on-hip", env("10.2"), env("", platform="cuda", archs=())),
        ("failed-capture-breaks-torch", env("", platform="cuda", archs=()), env("", torch="2.8.0")),
    ],
)
def test_a_row_applies_inside_its_range_only(row, inside, outside):
    """Bounds, architecture and curing variables all count."""
    assert row in ids(inside)
    assert row not in ids(outside)


def test_an_unknown_patch_level_counts_as_affected():
    """HIP says 7.2 and a build number: both "before 7.2.2" and "from 7.2.4" may be true."""
    found = ids(from_dict({"platform": "hip", "hip": "7.2.26015", "archs": ["gfx942"]}))
    assert {"watchdog-query-kills-capture", "duplicate-node-ids"} <= found


def test_decisions_lean_to_caution_and_give_their_reasons():
    """The largest validation count and the smallest node limit win; every row is named."""
    decisions = decide(env("7.2.0", archs=("gfx942", "gfx1201")))
    assert decisions.validate_replays == 8
    assert decisions.max_nodes == 200
    assert decisions.drain_watchdog and decisions.because("drain_watchdog") == ("watchdog-query-kills-capture",)
    assert "wrong-replays-one-process-in-five" in decisions.because("validate_replays")
    assert decisions.because("max_nodes") == ("stale-values-in-long-graphs", "deep-graphs-overflow-the-stack")


def test_cuda_keeps_torchs_own_behaviour():
    """On NVIDIA nothing is validated, limited or forced to another capture mode."""
    decisions = decide(env(platform="cuda", archs=()))
    assert (decisions.validate_replays, decisions.max_nodes, decisions.capture_error_mode) == (0, None, None)


def test_nothing_is_decided_without_a_platform():
    """No GPU software: no rows."""
    assert applicable(Environment()) == []


def test_advised_variables_that_are_set_are_not_advised_again():
    """Only what is missing is asked for."""
    assert decide(env("7.2.4")).env == {"DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING": "0"}
    assert decide(env("7.2.4", DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING="0")).env == {}


def test_every_row_is_complete_and_has_a_known_action():
    """Ids are unique, ranges parse, both languages are there, every action is a decision."""
    from dataclasses import fields

    from gfxgraph.hardware.defects import Decisions

    known = {item.name for item in fields(Decisions)} - {"reasons"} | {"always"}
    table = rows()
    assert len({row.id for row in table}) == len(table)
    for row in table:
        assert row.symptom["en"] and row.symptom["zh"] and row.sources and row.action, row.id
        assert set(row.action) <= known, row.id
        assert row.status in ("open", "fixed", "policy"), row.id
        for spec in (row.rocm, row.hip, row.torch):
            versions.may_match((1, 0), spec)


def test_a_recorded_environment_stands_in_for_this_machine(tmp_path, monkeypatch):
    """GFXGRAPH_ENVIRONMENT and GFXGRAPH_ARCH make the ROCm rows testable without ROCm."""
    path = tmp_path / "env.json"
    path.write_text(json.dumps({"environment": {"platform": "hip", "rocm": "7.2.1", "archs": ["gfx942"]}}))
    monkeypatch.setenv("GFXGRAPH_ENVIRONMENT", str(path))
    assert "wrong-replays-one-process-in-five" in ids(detect())
    monkeypatch.setenv("GFXGRAPH_ARCH", "gfx1030")
    assert detect().archs == ("gfx1030",)
    assert "wrong-replays-one-process-in-five" not in ids(detect())


def test_an_environment_survives_a_round_trip():
    """What as_dict writes, from_dict reads."""
    before = env("7.2.1", archs=("gfx942",), HSA_XNACK="1")
    after = from_dict(json.loads(json.dumps(before.as_dict())))
    assert applicable(after) == applicable(before)


@pytest.mark.parametrize("text", ["", "[]", '{"platform": "vulkan"}', '{"archs": 3}'])
def test_an_unusable_recording_is_a_config_error(tmp_path, monkeypatch, text):
    """The path and the problem are named."""
    path = tmp_path / "env.json"
    path.write_text(text)
    monkeypatch.setenv("GFXGRAPH_ENVIRONMENT", str(path))
    with pytest.raises(errors.ConfigError) as caught:
        detect()
    assert caught.value.code == "environment_unreadable"
    assert str(path) in str(caught.value)

"""Machines that are not here, by name: what there is, what is refused, how a GPU is described."""

import types

import pytest

from jaxbench.hardware import peaks
from jaxbench.hardware.targets import target
from jaxbench.hardware.targets.target import (
    compiler_version,
    compute_capability,
    describe_gpu,
    list_targets,
    most_link_bytes_per_s,
    parse_target,
)
from tests.conftest import ROOT, refusal, table

TABLES = ROOT / "jaxbench" / "hardware" / "targets"


@pytest.mark.parametrize(
    ("name", "devices", "usable_gib"),
    [
        ("tpu:v2:2x2", 8, 7.48),  # two cores a chip; what the compiler lets a program use
        ("tpu:v5e:2x4", 8, 15.75),
        ("tpu:v4:2x2x2", 8, 30.75),
        ("gpu:rtx2080ti", 1, 0.75 * 11),  # what JAX takes by default
        ("gpu:h100:8", 8, 0.75 * 79.647),
        ("gpu:h200:2x8", 16, 0.75 * 140.401),
        ("tpu:tpu7x:16x16x36", 18432, 94.75),  # a whole pod
    ],
)
def test_a_name_is_a_machine(name, devices, usable_gib):
    target = parse_target(name)
    assert (target.name, target.num_devices) == (name, devices)
    assert target.usable_bytes / 2**30 == pytest.approx(usable_gib, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v5e", "must begin with tpu: or gpu:"),
        ("gpu:h10", "did you mean 'h100'?"),
        ("tpu:v5l:2x2", "one of v2, v3"),
        ("tpu:v5e", "has 2 dimensions, such as tpu:v5e:2x2"),
        ("tpu:v4:2x2", "has 3 dimensions, such as tpu:v4:2x2x1"),
        ("tpu:v5e:3x4", "the first two numbers must be even; a single chip is tpu:v5e:1x1"),
        ("gpu:h100:0", "'0' is no size"),
        ("gpu:h100:8:8", "'8:8' is no size"),
        ("gpu:h100:1x2x3", "must be gpu:NAME, gpu:NAME:N or gpu:NAME:HOSTSxN"),
        ("tpu:v5e:32x16", "has 512 chips; a pod of v5e has 256"),
        ("gpu:h100:99999", "has 99,999 GPUs; at most 8,192"),
        ("gpu:h100:100x100", "has 10,000 GPUs; at most 8,192"),
    ],
)
def test_a_target_that_is_no_machine_is_refused(name, told):
    assert refusal(parse_target, name, told=told).startswith(f"--target={name}: ")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"device_kind": "Tesla T4", "compute_capability": "7.5"}, 7.5),
        ({"device_kind": "Tesla T4"}, 7.5),  # only compiled for
        ({"device_kind": "NVIDIA H100 80GB HBM3"}, 9.0),
        ({"device_kind": "of a newer file"}, float("inf")),
        ({"device_kind": "AMD Instinct MI300X", "compute_capability": "gfx942"}, None),
        ({"device_kind": "TPU v4", "platform": "tpu"}, None),
    ],
)
def test_the_compute_capability_of_a_device(device, expected):
    assert compute_capability(types.SimpleNamespace(**{"platform": "gpu"} | device)) == expected


@pytest.mark.parametrize(
    ("name", "gb_per_s"), [("tpu:v5e:2x2", 200), ("tpu:v5p:2x2x1", 600), ("tpu:tpu7x:1x1x1", 300)]
)
def test_links_carry_in_one_direction_half_of_what_they_carry_in_both(name, gb_per_s):
    """Google's pages: 400, 1200 and 1200 GB/s in both directions a chip."""
    assert parse_target(name).link_bytes_per_s == gb_per_s * 1e9


def test_every_machine_of_the_list_is_one_with_known_peaks_and_a_source():
    listed = list_targets()
    for platform in ("tpu", "gpu"):
        rows = table(TABLES / f"{platform}s.csv")
        assert rows
        for row in rows:
            [name] = [name for name in listed if name.split("[")[0].split(":")[1] == row["name"]]
            target = parse_target(name.split("[")[0])
            precision = "bf16" if platform == "tpu" else "fp32"
            peak = peaks.find_peak(target.kind, precision, "highest")
            assert peak and peak.bytes_per_s, name
            assert row["source"] and target.link_bytes_per_s > 1e9
            assert row.get("memory_source") or row["usable_source"]
            links = [most_link_bytes_per_s(target.kind, to_host) for to_host in (True, False)]
            assert 15e9 < links[0] <= 450e9 and links[1] >= target.link_bytes_per_s


def test_the_links_of_an_unknown_device_are_the_fastest_known():
    assert most_link_bytes_per_s("NVIDIA H100 80GB HBM3", False) == 450e9
    assert most_link_bytes_per_s("NVIDIA A40", False) == 56.25e9  # with a bridge
    assert most_link_bytes_per_s("TPU v2", False) == 358e9  # two cores share a chip's memory
    assert most_link_bytes_per_s("of a newer file", True) == 450e9
    assert most_link_bytes_per_s("of a newer file", False) == 900e9
    assert most_link_bytes_per_s("TPU v9", False) == 3690e9


def test_a_gpu_is_described_to_xla():
    text = describe_gpu(parse_target("gpu:rtx2080ti:2"))
    lines = [line.strip() for line in text.splitlines()]
    assert "core_count: 68" in lines and "memory_bandwidth: 616000000000" in lines
    assert "cuda_compute_capability { major: 7 minor: 5 }" in lines
    assert "device_memory_size: 11811160064" in lines
    assert 'device_description_str: "GeForce RTX 2080 Ti"' in lines
    assert text.count("{") == text.count("}")


def test_a_gpu_is_described_with_the_libraries_of_its_plugin(monkeypatch):
    """Without CUDA's version XLA takes it for 0, and multiplies no fp8."""
    h100 = parse_target("gpu:h100")
    assert "\nruntime_version { major: 13 minor: 0 }\n" in describe_gpu(h100)
    # No CUDA can be loaded: it is the one that the plugin was built with.
    versions = {True: {"CUDA": "12.9", "cuDNN": "9.8.0"}, False: {"cuDNN": "9.28.1"}}
    monkeypatch.setattr(target, "cuda_versions", lambda *, built=False: versions[built])
    text = describe_gpu(h100)
    assert "\nruntime_version { major: 12 minor: 9 }\n" in text
    assert "dnn_version_info { major: 9 minor: 28 patch: 1 }" in text


def test_cuda_13_compiles_for_turing_and_later(monkeypatch):
    versions = {"jaxlib": "0.12.0", "jax-cuda13-plugin": "0.12.0"}
    monkeypatch.setattr(target, "installed_version", versions.get)
    v100, t4 = parse_target("gpu:v100"), parse_target("gpu:t4")
    assert compiler_version(t4) == "jax-cuda13-plugin 0.12.0"
    told = "for no GPU of compute capability 7.0; in an environment without it: pip install"
    message = refusal(compiler_version, v100, told=told)
    assert "[cuda12]" in message
    versions["jax-cuda12-plugin"] = versions.pop("jax-cuda13-plugin")
    assert compiler_version(v100) == "jax-cuda12-plugin 0.12.0"


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(target, "installed_version", lambda name: None)
    h100 = parse_target("gpu:h100")
    refusal(
        compiler_version, h100, told="needs jax-cuda12-plugin or jax-cuda13-plugin: pip install"
    )

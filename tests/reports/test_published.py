"""Published rates beside runs, cards and steps: of the same work, and marked for what they are."""

import itertools
import math

import pytest

from jaxbench.analysis.published import published_rates
from jaxbench.predict.rates import devices_of
from jaxbench.reports.published import MOST, nearest, rates_words, work_key
from tests.cards import made
from tests.recorded import IMAGENET, RESNET, compiled, throughput, trained
from tests.reports.pages import rows_of, sections_of, tables

A100 = {"device_kind": "NVIDIA A100-SXM4-80GB", "num_devices": 1}
V3 = {"device_kind": "TPU v3", "num_devices": 8}  # four chips
BESIDE = "resnet50: published on the same devices, images/s"
CARD = "Images per second"


def resnet(folder, precision="bf16", batch=256, environment=A100, **fields):
    config = {"data": IMAGENET, "precision": precision, "batch_size": batch}
    config |= fields.pop("config", {})
    return throughput(folder, 2_500.0, config=config, environment=environment, **RESNET | fields)


def published(table):
    return [row for row in rows_of(table) if row["origin"].startswith("published")]


def test_each_rate_is_beside_a_run_of_its_own_work():
    for rate in published_rates():
        target, devices = devices_of(rate.device, rate.num_devices)
        # A run has its arithmetic by the precision and JAX's precision of products.
        asked = ("fp32", None) if rate.precision == "tf32" else (rate.precision, "highest")
        for kind in (target.kind, target.kind.removeprefix("NVIDIA ")):
            work = work_key(rate.network, kind, devices, *asked)
            assert rate in nearest(work, [rate.batch_size]), rate
    assert len({*published_rates()}) == len(published_rates())


@pytest.mark.parametrize(
    ("kind", "devices", "precision", "matmul", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", 1, "bf16", None, {"fp16"}),
        ("NVIDIA A100-SXM4-80GB", 1, "fp32", None, {"tf32"}),
        ("NVIDIA A100-SXM4-80GB", 1, "fp32", "highest", set()),
        ("Tesla V100-SXM2-16GB", 8, "fp32", None, {"fp32"}),
        ("Tesla V100-SXM2-16GB", 8, "bf16", None, set()),  # it has no units for it
        ("TPU v3", 8, "fp32", None, {"bf16"}),
        ("TPU v3", 4, "bf16", None, set()),
        ("NVIDIA A100-SXM4-80GB", 3, "bf16", None, set()),
        ("cpu", 1, "fp32", None, set()),
    ],
)
def test_rates_are_of_the_same_arithmetic_and_devices(kind, devices, precision, matmul, found):
    rates = nearest(work_key("resnet50", kind, devices, precision, matmul), [256])
    assert {rate.precision for rate in rates} == found
    assert not nearest(work_key("no network", kind, devices, precision, matmul), [256])


@pytest.mark.parametrize("batches", [[64], [1536], [64, 4096], [None], [0], ["largest"]])
def test_jax_is_first_then_the_nearest_batch_then_the_newest(batches):
    rates = nearest(work_key("resnet50", "Tesla V100-SXM2-16GB", 8, "fp16"), batches)
    assert rates[0].software == "JAX" and len(rates) > MOST
    known = [batch for batch in batches if isinstance(batch, int) and batch]
    others = [
        (min((abs(math.log(rate.batch_size / one)) for one in known), default=0), rate.date)
        for rate in rates
        if rate.software != "JAX"
    ]
    for (near, date), (far, later) in itertools.pairwise(others):
        assert near < far or (near == far and date >= later)


def test_a_run_has_the_published_rates_of_its_machine_beside_it(tmp_path, run_cli):
    resnet(tmp_path / "bf16")
    resnet(tmp_path / "fp32", "fp32")
    table = tables(sections_of(tmp_path)["history"])[BESIDE]
    rows = published(table)
    assert len(rows) == 2 * MOST
    assert {row["hardware"] for row in rows} == {"1 × NVIDIA A100-SXM4-80GB"}
    assert {row["precision"] for row in rows[:MOST]} == {"fp16"}
    assert [row["origin"] for row in rows_of(table)].count("measured") == 2
    assert rows[0]["software"] == "PaddlePaddle" and "2023-06" in rows[0]["when, by whom"]
    shown = run_cli(str(tmp_path / "bf16"), "--usd_per_hour=2", module="jaxbench.cost").stdout
    assert "2,897, fp16, batch 256, PaddlePaddle, 2023-06;" in " ".join(shown.split())


def test_a_batch_that_was_not_published_is_marked():
    (rate, *_) = [rate for rate in published_rates() if rate.batch_assumed]
    assert "batch assumed" in rates_words([rate])


@pytest.mark.parametrize(
    "other",
    [
        {"environment": {"device_kind": "cpu", "num_devices": 1}},
        {"environment": A100 | {"num_devices": 3}},
        {"environment": A100 | {"matmul_precision": "highest"}, "precision": "fp32"},
        {"model": "Mine", "parameters": 31_000},
        {"status": "failed"},
        {"config": {"replicas": "independent"}},
        {"config": {"data": IMAGENET | {"image_shape": [32, 32, 3]}}},
        {"config": {"data": IMAGENET | {"num_classes": 100}}},
    ],
)
def test_what_does_not_match_is_not_shown(tmp_path, other):
    resnet(tmp_path / "a", **other)
    section = sections_of(tmp_path).get("history")
    assert not section or BESIDE not in tables(section)


def test_a_network_that_no_article_has_is_known_by_its_size(tmp_path):
    size = {"model": "Mine", "parameters": 11_690_000, "forward_macs_per_image": 1_814_000_000}
    kind = {"device_kind": "NVIDIA GeForce RTX 3090", "num_devices": 1}
    resnet(tmp_path / "a", "bf16", 64, kind, **size)
    [table] = tables(sections_of(tmp_path)["history"]).values()
    assert table.title.startswith("resnet18: ") and published(table)


def test_how_many_more_there_are(tmp_path):
    v100 = {"device_kind": "Tesla V100-SXM2-16GB", "num_devices": 8}
    resnet(tmp_path / "a", "fp16", environment=v100)
    [*_, table] = tables(sections_of(tmp_path)["history"]).values()
    count = len(nearest(work_key("resnet50", v100["device_kind"], 8, "fp16"), []))
    assert len(published(table)) == MOST and f" {count - MOST} more are in rates.csv" in table.note


def test_a_lower_bound_is_marked_in_every_output(tmp_path, run_cli):
    run = resnet(tmp_path / "a", batch=1024, environment=V3)
    compiled(tmp_path / "c", "tpu:v2:2x2", config={"data": IMAGENET}, **RESNET)
    sections = sections_of(tmp_path)
    [row] = published(tables(sections["history"])[BESIDE])
    assert (row["origin"], row["images/s"]) == ("published: at least", "8,088")
    shown = run_cli(str(run), "--usd_per_hour=2", module="jaxbench.cost").stdout
    assert "published images/s: at least 8,088, bf16" in shown


def test_a_card_has_the_rates_of_its_machine_beside_it(tmp_path):
    made.write(tmp_path, made.judged(made.networks(), kind="NVIDIA H100 80GB HBM3"))
    table = tables(sections_of(tmp_path)["cards"])[CARD]
    rows = published(table)
    assert rows and {row["hardware"] for row in rows} == {"4 × NVIDIA H100 80GB HBM3"}
    assert "MXNet, MLPerf" in {row["software"] for row in rows}


def test_a_training_is_beside_the_epochs_of_an_article(tmp_path):
    two = {"device_kind": "GeForce RTX 2080 Ti", "num_devices": 2}
    trained(tmp_path / "a", environment=two)
    table = tables(sections_of(tmp_path)["history"])[
        "cnn10: published on the same devices, images/s"
    ]
    # 50,000 images in 14.22 s.
    assert published(table)[0]["images/s"] == "3,516"

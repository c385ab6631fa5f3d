"""The rates of runs and cards that enter the fit of predictions, and those that do not."""

import json

import pytest

from jaxbench.cli import registry
from jaxbench.config.custom import config_record
from jaxbench.predict import calibration
from jaxbench.predict.rates import read_rates
from jaxbench.reports.rates_to_fit import rates_to_fit
from tests.cards import made
from tests.conftest import refusal
from tests.recorded import epochs, recorded_run, scaling_record, trained

MACS = 4_350_272  # of cnn10:tiny
TINY = json.loads(json.dumps(config_record(registry.load("cnn10:tiny"))))


def run(folder, write=trained, rate=5000.0, macs=MACS, config=None, **fields):
    """Writes a run of cnn10:tiny with batch size 128."""
    config = TINY | {"batch_size": 128} | (config or {})
    usual = {"experiment": "cnn10:tiny", "forward_macs_per_image": macs, "config": config}
    return write(folder, rate, **usual | fields)


def taken(*paths):
    return rates_to_fit([*map(str, paths)], lambda _: None)


def test_the_rates_of_a_card_and_of_runs_are_rows_of_the_fit(tmp_path):
    card = made.write(tmp_path / "card", made.judged(made.networks(others=False)))
    made.write(tmp_path / "copy", made.judged(made.networks(others=False)))
    # A card's run is a copy, too.
    fields = {"experiment": "resnet50", "config": {"precision": "bf16", "batch_size": 256}}
    fields["environment"] = {"device_kind": "NVIDIA H100 80GB HBM3", "num_devices": 4}
    run(card.parent / made.RUN, rate=10_000.0, macs=made.FLOPS // 6, **fields)
    path = run(tmp_path / "run", config={"gradient_accumulation_steps": 2})
    (of_card, of_run), lines = taken(tmp_path)
    assert lines[0] == "1 rate(s) of 1 card(s), 1 rate(s) of 1 run(s)"
    assert lines[1] == "left out: 2 rate(s) (a second copy)"
    setting = of_card.setting
    assert (setting.kind, setting.num_devices, setting.batch) == ("NVIDIA H100 80GB HBM3", 4, 64)
    assert (setting.arithmetic, setting.network, setting.software) == ("16", "resnet50", "JAX")
    assert of_card.rate == pytest.approx(10_000) and not of_card.lower_bound
    assert (of_card.source, of_card.date) == (str(card), "2026-03-04")
    # Each part of a batch is a step, as it is predicted.
    assert (of_run.setting.batch, of_run.rate) == (64, pytest.approx(5000))
    assert of_run.setting.shape.macs == MACS and f"{MACS:,} MACs" in of_run.setting.network_name
    assert of_run.source == str(path)


def test_each_step_of_a_scaling_run_is_a_rate(tmp_path):
    steps = [scaling_record(count, 1000.0 * count) for count in (1, 2)]
    steps.append(scaling_record(4, None, status="oom"))

    def write(folder, _, **fields):
        return recorded_run(folder, steps, mode="scaling", **fields)

    rates, _ = taken(run(tmp_path / "run", write))
    assert [(one.setting.num_devices, one.setting.batch) for one in rates] == [(1, 64), (2, 64)]
    # There is no target of two of the four chips of a host, so that step is left out alone.
    tpu = {"device_kind": "TPU v5 lite", "backend": "tpu", "num_devices": 4}
    rates, _ = taken(run(tmp_path / "tpu", write, environment=tpu))
    assert [one.setting.num_devices for one in rates] == [1]


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"environment": {"device_kind": "cpu"}}, "cpu is not among --target=list"),
        ({"environment": {"device_kind": "NVIDIA X1"}}, "NVIDIA X1 is not among --target=list"),
        ({"environment": {"num_processes": 2}}, "several processes"),
        ({"environment": {"matmul_precision": "highest"}}, "jax_default_matmul_precision=highest"),
        ({"environment": {"distorters": ["a debugger"]}}, "distorted by a debugger"),
        (
            {"environment": {"boards": [{"power_limit_w": 300, "default_power_limit_w": 700}]}},
            "its power limit is below the default",
        ),
        ({"summary": {"telemetry": {"host_busy": True}}}, "the host was busy"),
        ({"config": {"remat": "save_dots"}}, "remat=save_dots"),
        ({"config": {"replicas": "independent"}}, "replicas=independent"),
        ({"config": {"precision": "fp64"}}, "no fp64 units"),
        ({"config": {"model": {"depth": 9}}}, "has no field 'model.depth'"),
        ({"status": "invalid"}, "its status is invalid"),
        ({"rate": float("nan"), "write": lambda f, _, **k: recorded_run(f, **k)}, "no steady rate"),
        ({"experiment": "mine"}, "jaxbench has no experiment mine"),
        ({"macs": 2 * MACS}, "this jaxbench makes another network of cnn10:tiny"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_predictions_do_not_take_is_left_out(tmp_path, fields, why):
    path = run(tmp_path / "run", **fields)
    line = refusal(taken, path, told="no rate to fit; left out: 1 r")
    assert why in line


def test_a_training_that_waited_for_data_is_left_out(tmp_path):
    for name, wait_s, is_in in (("bound", 3.0, False), ("fed", 0.2, True)):
        times = {"train_time_s": [10.0] * 4, "data_wait_s": [0.0] + [wait_s] * 3}

        def write(folder, _, times=times, **fields):
            return recorded_run(folder, epochs([5000.0] * 4, **times), **fields)

        path = run(tmp_path / name, write)
        if is_in:
            assert len(taken(path)[0]) == 1
        else:
            refusal(taken, path, told="1 run(s) (its training waited for data)")


def test_no_file_that_a_record_names_is_run(tmp_path):
    file = tmp_path / "cnn10.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    path = run(tmp_path / "run", experiment=str(file))
    refusal(taken, path, told="jaxbench has no experiment")
    assert not (tmp_path / "ran").exists()


def test_a_card_of_a_busy_host_is_left_out_and_one_that_is_slower_than_expected_is_not(tmp_path):
    busy = made.write(tmp_path / "busy", made.judged(made.networks(others=False), load=(90, 1)))
    refusal(taken, busy, told="1 card(s) (host: ")
    hot = made.write(
        tmp_path / "hot", made.judged(made.networks(others=False), made.soak(errors=1))
    )
    refusal(taken, hot, told="1 card(s) (soak: errors)")
    slow = made.with_verdict(made.expected(made.card(made.networks(1_000.0, others=False)), []))
    assert [one.rule for one in slow.verdict.findings if one.status == "fail"] == [
        "slower_than_predicted"
    ]
    assert len(taken(made.write(tmp_path / "slow", slow))[0]) == 1


def test_the_command_says_what_it_took(run_cli, refused, tmp_path, monkeypatch):
    fitted = []

    def calibrate(rates, _):
        fitted.extend(rates)
        return calibration.load()

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    run(tmp_path / "runs" / "one")
    run(tmp_path / "runs" / "two", environment={"device_kind": "cpu"})
    row = "resnet50,gpu:a100,1,bf16,256,JAX,2000\n"
    head = "network,device,num_devices,precision,batch_size,software,examples_per_s\n"
    (tmp_path / "own.csv").write_text(head + row)
    done = run_cli("runs", "own.csv", module="jaxbench.calibrate")
    count = len(read_rates())
    assert done.returncode == 0 and len(fitted) == count + 2
    text = " ".join(done.stdout.split())
    assert f"{count} published rates, 1 of own.csv, 1 rate(s) of 1 run(s)" in text
    assert "left out: 1 run(s) (cpu is not among --target=list)" in text
    assert "tracing cnn10:tiny (1 of 1)" in done.stderr
    # A table is fitted if no run beside it can be.
    fitted.clear()
    done = run_cli("own.csv", "runs/two", module="jaxbench.calibrate")
    assert done.returncode == 0 and len(fitted) == count + 1 and "no rate to fit" in done.stdout
    refused("runs/two", told="no rate to fit", module="jaxbench.calibrate")
    (tmp_path / "dated.csv").write_text(f"{head.strip()},date\n{row.strip()},soon\n")
    refused("dated.csv", told="date", module="jaxbench.calibrate")
    for path, told in (("nowhere", "no such folder"), ("nowhere.csv", "No such file")):
        refused(path, told=told, module="jaxbench.calibrate")
    (tmp_path / "foreign.json").write_text("{}")
    refused("foreign.json", told="is no card", module="jaxbench.calibrate")

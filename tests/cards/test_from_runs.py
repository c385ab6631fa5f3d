"""A card follows from its runs: one that was altered is refused, and so are altered runs."""

import csv
import json
import shutil

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.card_file import CARD, digest_file, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.from_runs import step_time_figures
from jaxbench.cards.submission import MOST_BYTES, submit
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.summary import COLUMNS
from tests.cards import made

RUN, SOAK = "runs/cnn10-tiny-fp32-16", "runs/soak"


def test_the_recorded_card_is_accepted(recorded, tmp_path):
    assert check_card(recorded) == []
    # It may travel without its files.
    shutil.copy(recorded / CARD, tmp_path / "alone.json")
    assert check_card(tmp_path / "alone.json") == []


def figure_of(content, name, at=0):
    figures = (one for part in content["parts"] for one in part.get("figures", ()))
    return [one for one in figures if one["name"] == name][at]


def scaled(name, factor, at=0):
    def change(content):
        one = figure_of(content, name, at)
        one["value"] *= factor

    return change


def moved(name, end, factor):
    def change(content):
        figure_of(content, name)["interval"][end] *= factor

    return change


def put(name, **fields):
    return lambda content: figure_of(content, name).update(fields)


ALTERED = {
    "a rate": scaled("images_per_s", 1.05),
    "a rate by little": scaled("images_per_s", 1 + 1e-6),
    "the rate of half the batch": scaled("images_per_s", 0.97, at=1),
    "a rate's lower end": moved("images_per_s", 0, 1.1),
    "a rate's upper end": moved("images_per_s", 1, 1.1),
    "a rate's interval": put("images_per_s", interval=None),
    "operations": scaled("flops_per_image", 2),
    "the share of the measured peak": scaled("measured_peak_share", 1.01),
    "an fp32 product": scaled("matmul_fp32_tflops", 1.1),
    "a product beyond the processor": scaled("matmul_bf16_tflops", 1e4),
    "compilation": scaled("compile_cold_s", 0.5),
    "the time of an image": scaled("step_per_image_s", 0.9),
    "the rest of a step": scaled("step_fixed_s", 1.1),
    "the end of the rest of a step": moved("step_fixed_s", 1, 1.1),
    "drift": put("drift_percent", value=0.0),
    "the drift's lower end": moved("drift_percent", 0, 0.1),
    "the drift's upper end": moved("drift_percent", 1, 0.1),
    "memory": scaled("copy_gb_per_s", 1e4),
    "memory's interval": put("triad_gb_per_s", interval=[1.0, 1.5]),
    "a device": put("scale_gb_per_s", device=3),
    "a call": put("dispatch_latency_s", value=1e-9, interval=None),
    "a slow call": put("dispatch_latency_s", value=60.0, interval=None),
    "a peak": put("copy_gb_per_s", nominal=10.0),
    "a share of the peak": put("copy_gb_per_s", share_of_nominal=0.9),
    "rounds": put("rounds", value=0),
    "mismatches": put("mismatches", value=1),
    "another run": put("images_per_s", run=SOAK),
    "another batch": lambda c: figure_of(c, "images_per_s")["labels"].update(batch=32),
    "another network": lambda c: figure_of(c, "compile_cold_s")["labels"].update(
        network="wrn28_10:tiny"
    ),
    "the date": lambda content: content.update(created_at="2999-01-01T00:00:00+00:00"),
}


@pytest.mark.parametrize("change", ALTERED.values(), ids=[*ALTERED])
def test_each_alteration_of_a_figure_is_refused(recorded, change):
    before = (recorded / CARD).read_text()
    made.alter(recorded / CARD, change)
    assert (recorded / CARD).read_text() != before
    assert check_card(recorded)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (
            f"{RUN}/metrics.jsonl",
            lambda text: text.replace('"windows_s":[0.', '"windows_s":[0.0', 1),
        ),
        (
            f"{SOAK}/metrics.jsonl",
            lambda text: text.replace('"windows_s":[', '"windows_s":[0.5,', 1),
        ),
        (f"{RUN}/metrics.jsonl", lambda text: ""),
        (f"{RUN}/metrics.jsonl", lambda text: "{}\n"),
        (f"{RUN}/run.json", lambda text: "[]"),
        (f"{RUN}/run.json", lambda text: text.replace('"cnn10:tiny"', '"cnn11:tiny"')),
        (
            f"{SOAK}/run.json",
            lambda text: text.replace('"windows":[[', '"windows":[1,[', 1),
        ),
    ],
)
def test_altered_records_are_refused_even_if_their_digest_follows(recorded, name, change):
    path = recorded / name
    before = path.read_text()
    path.write_text(change(before))
    if 'windows":[1,' in path.read_text():
        (path.parent / "telemetry.csv").write_text("time\n")
    assert path.read_text() != before
    files = {one: digest_file(recorded / one) for one in read_card(recorded).files}
    for one in path.parent.iterdir():
        files[one.relative_to(recorded).as_posix()] = digest_file(one)
    made.alter(recorded / CARD, lambda content: content.update(files=files))
    problems = check_card(recorded)
    assert problems and all("\n" not in line for line in problems)


def with_samples(recorded, run, part, **figures):
    """Give a run the samples of a GPU of 300 W that warms up to 71 degrees; the card, figures."""
    rows = [
        {"time": f"2026-11-26T00:00:{tenth / 10:06.3f}+00:00", "elapsed_s": tenth / 10}
        | {"device": "gpu0", "kind": "gpu", "power_w": 300.0, "energy_j": 30.0 * tenth}
        | {"temperature_c": 59 + tenth // 10}
        for tenth in range(121)
    ]
    with open(recorded / run / "telemetry.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    document = json.loads((recorded / run / "run.json").read_text())
    # Its summary agrees with the card.
    celsius = figures.get("temperature_max_c", 71.0)
    devices = {"gpu0": {"kind": "gpu", "temperature_c_max": celsius}}
    document["summary"]["telemetry"] = {"windows": [[1.0, 10.0, 900]], "devices": devices}
    (recorded / run / "run.json").write_text(json.dumps(document))
    labels = {"network": "cnn10:tiny", "precision": "fp32", "batch": 16}

    def add(content):
        [where] = [one for one in content["parts"] if one["name"] == part]
        for name, value in figures.items():
            of = {"labels": labels} if part == "networks" else {"device": 0}
            where["figures"].append(
                {"name": name, "value": value, "origin": "measured", "run": run} | of
            )
        for name in ("telemetry.csv", "run.json"):
            content["files"][f"{run}/{name}"] = digest_file(recorded / run / name)

    made.alter(recorded / CARD, add)


@pytest.mark.parametrize(
    ("run", "part", "figures", "wrong"),
    [
        (SOAK, "soak", {"temperature_max_c": 71.0, "power_mean_w": 300.0}, None),
        (SOAK, "soak", {"temperature_max_c": 60.0}, "temperature_max_c, device 0: 60"),
        (SOAK, "soak", {"power_mean_w": 290.0}, "power_mean_w, device 0: 290"),
        # 300 W for 9 seconds and 900 images.
        (RUN, "networks", {"energy_j_per_image": 3.0, "energy_covered_share": 1.0}, None),
        (RUN, "networks", {"energy_j_per_image": 2.9}, "energy_j_per_image"),
        (RUN, "networks", {"energy_longest_gap_s": 0.5}, "energy_longest_gap_s"),
    ],
)
def test_sensors_and_energy_follow_from_their_samples(recorded, run, part, figures, wrong):
    with_samples(recorded, run, part, **figures)
    problems = check_card(recorded)
    assert bool(problems) == bool(wrong), problems
    assert not wrong or problems[0].startswith(wrong)


def test_runs_are_of_the_machine_of_the_card(recorded):
    made.alter(recorded / CARD, lambda c: c["environment"].update(cpu_cores=200))
    problems = check_card(recorded)
    assert len(problems) == 3 and all("cpu_cores is 2, not 200" in one for one in problems)


def test_the_time_of_a_step_by_two_batches():
    """10 ms and 1 ms an image."""
    labels = {"network": "a", "precision": "bf16"}
    rates = [
        measured("images_per_s", batch / (0.01 + 0.001 * batch), batch=batch, **labels)
        for batch in (64, 16, 32)
    ]
    found = {one.name: one.value for one in step_time_figures(rates)}
    assert found == pytest.approx({"step_fixed_s": 0.01, "step_per_image_s": 0.001})
    assert [*step_time_figures(rates[:1])] == []


def test_a_submission_names_no_host_and_no_path(tmp_path):
    card = made.judged(made.skipped("storage", reason=f"no space in {tmp_path}, says lab"))
    out = tmp_path / "results" / "lab-4xh100"
    [line] = submit(str(made.write(tmp_path / "a", card)), str(out))
    assert line.startswith(f"{out}/card.json: 1 files, ") and line.endswith("check passes")
    text = (out / CARD).read_text()
    assert str(tmp_path) not in text and '"hostname": "host"' in text and "says host" in text
    assert check_card(out) == []
    with pytest.raises(BadInput, match="nothing is overwritten"):
        [*submit(str(tmp_path / "a"), str(out))]


@pytest.mark.parametrize("host", ["cpu", "runs", "1", "", "w\u00f6rk", "Lab.example.org"])
def test_any_name_of_a_host_is_hidden(host, recorded, tmp_path):
    """Whatever else has that name; so are the hosts that variables list."""
    text = f"at {host} and {host.lower()}.a.b: no"

    def name_hosts(content):
        content["environment"] |= {"hostname": host, "variables": {"TPU_WORKER_HOSTNAMES": "a,b"}}
        content["parts"][0]["checks"][0]["found"] = text

    made.alter(recorded / CARD, name_hosts)
    [*submit(str(recorded), str(tmp_path / "out"))]
    card = read_card(tmp_path / "out")
    assert card.environment["hostname"] == "host" and card.environment["backend"] == "cpu"
    assert card.environment["variables"] == {"TPU_WORKER_HOSTNAMES": "host"}
    assert card.parts[0].checks[0].found == ("at host and host: no" if host else text)


def test_damaged_records_are_not_submitted(recorded, tmp_path):
    """The last line of a killed run may be torn: a check reads what is before it."""
    path = recorded / SOAK / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind')
    digest = digest_file(path)
    made.alter(recorded / CARD, lambda c: c["files"].update({f"{SOAK}/metrics.jsonl": digest}))
    assert check_card(recorded) == []
    with pytest.raises(BadInput, match="soak: damaged records: "):
        [*submit(str(recorded), str(tmp_path / "out"))]


def test_a_submission_has_the_records_and_no_more(recorded, tmp_path):
    [*submit(str(recorded), str(tmp_path / "out"))]
    assert read_card(tmp_path / "out").files == read_card(recorded).files
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert size < MOST_BYTES


def test_a_submission_that_would_be_too_large_says_what_it_leaves_out(recorded, tmp_path):
    with_samples(recorded, SOAK, "soak", temperature_max_c=71.0)
    rows = (recorded / SOAK / "telemetry.csv").read_text().splitlines(keepends=True)
    rows[-1:] = [rows[-1]] * 5000
    (recorded / SOAK / "telemetry.csv").write_text("".join(rows))
    digest = digest_file(recorded / SOAK / "telemetry.csv")
    made.alter(recorded / CARD, lambda c: c["files"].update({f"{SOAK}/telemetry.csv": digest}))
    first, last = submit(str(recorded), str(tmp_path / "out"))
    assert (
        first == f"{SOAK}/telemetry.csv: left out, because the folder would be larger than 200 kB"
    )
    assert (
        last.endswith("check passes") and not (tmp_path / "out" / SOAK / "telemetry.csv").exists()
    )


def test_what_check_refuses_is_not_submitted(recorded, tmp_path):
    made.alter(recorded / CARD, scaled("images_per_s", 2))
    with pytest.raises(BadInput, match="is refused by `jaxbench qualify check`: .*images_per_s"):
        [*submit(str(recorded), str(tmp_path / "out"))]
    assert not (tmp_path / "out").exists()

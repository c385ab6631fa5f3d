"""Mutates valid files and has their readers read them: `python -m tests.integration.fuzz_readers`.

    FOLDER SEED CASES sets|records|commands

A line of JSON on stdout before and after each case says what came of a reader so far:
{"reader": ..., "cases": ..., "refused": ..., "problem": ...}. A problem is a traceback, a message
of several lines, or too much memory. A crash or a hang ends the process; its file is still there.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

import numpy as np

from jaxbench.analysis.pricing import COLUMNS, load_prices
from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.resume import find_resume
from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput
from jaxbench.records.reader import load_run, missing_records, read_document, read_results
from jaxbench.records.schema import TrialFigures
from tests.data.cifar10_files import write_batches
from tests.recorded import on_the_way, write_results
from tests.tfds_files import image_feature, label_feature, write_tfds

# More than any of these small files needs; less than what a few bytes can claim.
_MAX_GROWTH_BYTES = 2**29
_LONGEST_CASE_S = 10
_REFUSALS = (BadInput, checkpoint.DamagedCheckpointError)
# What JSON may hold in a number's, a text's or a list's place.
_VALUES = (
    *("null", "-1", "0", "1e999", "NaN", "true", '""', '"x"', "[]", "{}", "1" * 40),
    *('"\\u001b[2J\\n"', "[" * 3000, '{"a":' * 3000, '"2026-13-45"', "18446744073709551616"),
)
_NUMBERS = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(8), b"\x00\x00\x00\x80")


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Returns a few bytes changed, cut out, doubled, or replaced by what tends to hurt."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if not content:
            break
        start = draw.randrange(len(content))
        stop = min(len(content), start + draw.choice((1, 2, 4, 8, 64, 1024)))
        kind = draw.randrange(6)
        if kind == 0:
            content[start] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[start:stop] = draw.randbytes(stop - start)
        elif kind == 2:
            del content[start:stop]
        elif kind == 3:
            content[start:start] = content[start:stop]
        elif kind == 4:
            number = draw.choice(_NUMBERS)
            content[start : start + len(number)] = number
        else:
            del content[draw.choice((start, 0, len(content) // 2)) :]
    return bytes(content)


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    """Returns JSON with a value in another's place, or bytes that are none."""
    if draw.random() < 0.4:
        return mutate(content, draw)
    tokens = [at for at, byte in enumerate(content) if byte in b":,["]
    start = draw.choice(tokens) + 1
    ends = [at for at in range(start, len(content)) if content[at] in b",]}\n"]
    stop = draw.choice(ends[:3] or [len(content)])
    return content[:start] + draw.choice(_VALUES).encode() + content[stop:]


class Reader:
    """A valid file, what reads it, and what mutates it."""

    def __init__(self, path: pathlib.Path, read: Callable[[], object], change=mutate):
        self.path, self.read, self.change = path, read, change
        self.content = path.read_bytes()


def read_set(source: str, **fields: object) -> None:
    data = DataConfig(source=source, **fields)
    load_dataset(dataclasses.replace(registry.load("cnn10"), data=data, batch_size=1))


def set_readers(folder: pathlib.Path) -> Iterator[tuple[str, Reader]]:
    generator = np.random.default_rng(1)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = generator.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(5)
    for name, save in (("npz", np.savez), ("small.npz", np.savez_compressed)):
        save(folder / f"set.{name}", **arrays)
        path = folder / f"set.{name}"
        fields = {"path": str(path), "image_shape": (8, 8, 3), "num_classes": 5}
        yield name, Reader(path, functools.partial(read_set, "npz", **fields))

    batches = write_batches(folder / "batches")
    read = functools.partial(read_set, "cifar10_batches", path=str(batches))
    yield "batches", Reader(batches / "data_batch_1.bin", read)

    example = {"image": np.zeros((8, 8, 3), np.uint8), "label": 1}
    splits = {"train": [example] * 3, "test": [example]}
    write_tfds(folder, "small", {"image": image_feature(3), "label": label_feature(2)}, splits)
    fields = {"name": "small", "path": str(folder), "image_shape": (8, 8, 3), "num_classes": 2}
    read = functools.partial(read_set, "tfds", **fields)
    prepared = folder / "small" / "1.0.0"
    for path in sorted(prepared.iterdir()):
        change = mutate_json if path.suffix == ".json" else mutate
        if "test" not in path.name:
            name = f"tfds {path.name.partition('.array')[0]}"
            yield name, Reader(path, read, change)


def record_readers(folder: pathlib.Path) -> Iterator[tuple[str, Reader]]:
    run = on_the_way(folder / "run", (0.5, 0.9), status="preempted", experiment="some")

    def read():
        read_document(run)
        find_resume(None, str(run), "some").close()
        missing_records(load_run(str(run)))

    yield "run.json", Reader(run / "run.json", read, mutate_json)
    yield "metrics.jsonl", Reader(run / "metrics.jsonl", read, mutate_json)

    trial = {"figures": TrialFigures(usd=1.5), "place": {"b": "2"}, "run": "trials/1/run1"}
    results = write_results(folder, trial, trial | {"key": "k"}, trial) / "results.jsonl"
    yield "results.jsonl", Reader(results, lambda: read_results(results), mutate_json)

    prices = folder / "prices.csv"
    row = "my offer,A100,8,12.5,2026-01-02,https://example.org\n"
    prices.write_text(",".join(COLUMNS) + "\n" + row + row.replace("my", "his"))
    yield "prices", Reader(prices, lambda: load_prices(str(prices)))

    name, state = "step-000000001.epoch-00001", {"a": np.arange(3), "b": np.ones((2, 2))}
    manifest = folder / name / "manifest.json"
    orbax = checkpoint.create_orbax()
    checkpoint.write_checkpoint(orbax, folder, name, state, {"step": 1, "records": {}}, 0.5)

    def sealed(content: bytes, draw: random.Random) -> bytes:
        """A manifest that says of itself that it is as it was written."""
        with contextlib.suppress(ValueError, RecursionError):
            body = json.dumps(json.loads(content)["body"]).encode()
            changed = json.loads(mutate_json(body, draw))
            return json.dumps({"body": changed, "seal": checkpoint._seal(changed)}).encode()
        return mutate_json(content, draw)

    def restore():
        checkpoint.read_checkpoint(folder, name, state)

    yield "manifest.json", Reader(manifest, restore, sealed)


def command_readers(folder: pathlib.Path) -> Iterator[tuple[str, Reader]]:
    """What report, cost and compare do with a run, beside one that is as it was."""
    from tests.conftest import MICRO
    from tests.in_process import run_command

    for name in ("run", "other"):
        args = (f"--experiment={MICRO}", "--experiment.epochs=7", f"--workdir={name}")
        assert not run_command(folder, *args, "--usd_per_hour=2").returncode

    def read():
        refusals = []
        for command in (
            "report run other --out=report.html",
            "report run other --format=csv --out=report.csv",
            "cost run --target_accuracy=0.5",
            "compare run other",
        ):
            module, *args = command.split()
            done = run_command(folder, *args, module=f"jaxbench.{module}")
            assert done.returncode in (0, 2), done
            if done.returncode:
                refusals.append(done.stderr.removesuffix("\n"))
        if refusals:
            raise BadInput(max(refusals, key=lambda line: line.count("\n")))

    for name in ("run.json", "metrics.jsonl", "telemetry.csv"):
        change = mutate_json if "json" in name else mutate
        yield f"run's {name}", Reader(folder / "run" / name, read, change)


def fuzz(name: str, reader: Reader, seed: str, most_cases: int) -> None:
    """Reads so many mutations: the same on all machines."""

    def tell():
        result = {"reader": name, "cases": cases, "refused": refused, "problem": problem}
        print(json.dumps(result), flush=True)

    refused, cases, problem = 0, 0, None
    tell()
    reader.read()  # the valid file; imports what reading takes
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while cases < most_cases and not problem:
        draw = random.Random(f"{seed} {name} {cases}")
        reader.path.write_bytes(reader.change(reader.content, draw))
        signal.alarm(_LONGEST_CASE_S)
        try:
            reader.read()
        except _REFUSALS as error:
            refused += 1
            if not str(error) or "\n" in str(error):
                problem = f"no single line: {str(error)!r}"
        except BaseException:
            problem = traceback.format_exc()
        signal.alarm(0)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
        if grown > _MAX_GROWTH_BYTES:
            problem = problem or f"{grown:,} bytes more"
        cases += 1
        tell()
    reader.path.write_bytes(reader.content)


def main(folder: str, seed: str, most_cases: str, group: str) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, in a library's code too
    make = {
        "sets": set_readers,
        "records": record_readers,
        "commands": command_readers,
    }[group]
    readers = dict(make(pathlib.Path(folder)))
    for reader in readers.values():
        reader.read()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 4 * _MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, reader in readers.items():
        fuzz(name, reader, seed, int(most_cases))


if __name__ == "__main__":
    main(*sys.argv[1:])

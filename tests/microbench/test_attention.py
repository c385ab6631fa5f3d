"""model.attention=auto: what is taken, what is recorded, and what a resumed run keeps."""

import json

import jax
import pytest

from jaxbench import modes
from jaxbench.batch_layout import BatchLayout
from jaxbench.checkpoints.checkpoint import Policy
from jaxbench.clock import Clock
from jaxbench.microbench import attention
from jaxbench.microbench.attention import preferred_attention
from jaxbench.microbench.interleaved import Interleaved
from jaxbench.models import transformer_block
from jaxbench.modes.train import run_training
from jaxbench.parallel import processes
from jaxbench.records.writers.console import Console
from tests.conftest import config_of, prepared, run_json

TINY = "gpt_bytes:tiny"


class Fake(Interleaved):
    """A layer whose calls take a given time, or raise an error."""

    def __init__(self, name, result):
        super().__init__(name, window_s=0.05)
        self.result = result

    def run(self, calls):
        if isinstance(self.result, Exception):
            raise self.result

    def time_calls(self, calls):
        self.run(calls)
        return calls * self.result

    def call_s(self):
        return attention.Calls.call_s(self)


@pytest.fixture
def layers(monkeypatch):
    """Lets a device do `names`, of which each takes a time or raises; returns those tried."""

    def have(**results):
        tried = []

        def layer(config, layout, device, name):
            tried.append(name)
            return Fake(name, results[name])

        names = tuple(results)
        monkeypatch.setattr(attention, "_layer", layer)

        def possible(config, device):
            asked = config.model.attention
            return (names if asked == "auto" else (asked,)), None

        monkeypatch.setattr(attention, "possible_on", possible)
        # On a CPU only this one can be built.
        attend = transformer_block.attend
        monkeypatch.setattr(transformer_block, "attend", lambda *args: attend(*args[:4], "xla"))
        return tried

    return have


ERROR = RuntimeError("no engine\nfor this graph")


@pytest.mark.parametrize(
    ("results", "chosen", "reason"),
    [
        ({"cudnn": 1e-3, "xla": 2e-3}, "cudnn", "1,000.0 us a layer, xla 2,000.0 us"),
        ({"cudnn": 2e-3, "xla": 1e-3}, "xla", "1,000.0 us a layer, cudnn 2,000.0 us"),
        ({"cudnn": 1.04e-3, "xla": 1e-3}, "cudnn", "1,040.0 us a layer, xla 1,000.0 us"),
        ({"xla": 1.04e-3, "flash": 1e-3}, "xla", "1,040.0 us a layer, flash 1,000.0 us"),
        ({"cudnn": ERROR, "xla": 1e-3}, "xla", "cudnn failed (RuntimeError: no engine)"),
        ({"xla": MemoryError("full"), "flash": 1e-3}, "flash", "xla failed (MemoryError: full)"),
        (
            {"cudnn": ERROR, "xla": MemoryError("full")},
            "xla",
            "cudnn failed (RuntimeError: no engine), xla failed (MemoryError: full)",
        ),
    ],
)
def test_the_fastest_is_taken_of_those_that_run(layers, results, chosen, reason):
    layers(**results)
    with prepared(TINY, num_devices=1) as setup:
        document, warnings = setup.document(), setup.warnings_at_start()
        phases_s = setup.clock.totals_s()
        assert setup.network.config.model.attention == chosen
    assert (document["attention"], document["attention_reason"]) == (chosen, reason)
    assert document["config"]["model"]["attention"] == "auto" and "attention" in phases_s
    failed = [name for name, result in results.items() if isinstance(result, Exception)]
    told = [text for text in warnings if text.startswith("attention: ")]
    assert len(told) == len(failed)
    for name, text in zip(failed, told, strict=True):
        assert text.startswith(f"attention: {name} failed (")
        assert text.endswith(f"); {chosen} is taken")


def test_what_is_asked_for_or_alone_is_not_timed(layers, monkeypatch):
    monkeypatch.setattr(attention, "_layer", None)
    with prepared(TINY, num_devices=1) as setup:
        assert setup.document()["attention_reason"].startswith("cudnn is for NVIDIA GPUs")
        assert "attention" not in setup.clock.totals_s()
    tried = layers(cudnn=ERROR, xla=1e-3)
    with prepared(TINY, num_devices=1, model__attention="cudnn") as setup:
        document = setup.document()
    assert (document["attention"], document["attention_reason"], tried) == ("cudnn", None, [])


def test_what_is_only_compiled_or_deterministic_has_the_preferred_one(layers, monkeypatch):
    tried = layers(cudnn=2e-3, xla=1e-3)
    chosen = preferred_attention(config_of(TINY), jax.devices()[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    with prepared(TINY, num_devices=1) as setup:
        assert setup.attention == chosen
    assert chosen[:2] == ("cudnn", "chosen without timing") and tried == []


def test_a_resumed_run_keeps_its_attention(layers, tmp_path, monkeypatch):
    layers(cudnn=2e-3, xla=1e-3)
    run, branch = (str(tmp_path / name) for name in ("run", "branch"))

    def train(workdir, resume, max_steps):
        config = config_of(TINY, num_devices=1, max_steps=max_steps)
        how = {"checkpoints": Policy(epochs=1), "resume": resume, "telemetry_s": 0.0}
        run_training(config, workdir, Console(), **how)

    def recorded(workdir):
        document = run_json(workdir)
        return document["attention"], document["attention_reason"]

    train(run, "none", 1)
    assert recorded(run) == ("xla", "1,000.0 us a layer, cudnn 2,000.0 us")
    tried = layers(cudnn=1e-3, xla=2e-3)
    monkeypatch.setattr(modes.train, "compile_and_place", None)  # prepared and recorded is enough
    with pytest.raises(TypeError):
        train(branch, run, 2)
    assert recorded(branch) == recorded(run) and tried == []
    # The kept one is impossible where it goes on: another is timed, said and recorded.
    layers(cudnn=1e-3, flash=2e-3)
    said: list[str] = []
    monkeypatch.setattr(Console, "say", lambda self, line: said.append(line))
    with pytest.raises(TypeError):
        train(run, "auto", 2)
    assert recorded(run) == ("cudnn", "1,000.0 us a layer, flash 2,000.0 us")
    assert any(line.startswith("warning: attention is cudnn now, it was xla") for line in said)
    with prepared(TINY, num_devices=1) as setup:  # a new run times them
        assert setup.attention.name == "cudnn"


@pytest.mark.parametrize("is_primary", [True, False])
def test_processes_choose_alike(layers, monkeypatch, is_primary):
    """Process 0 measures; the others take what it sends, which travels as JSON."""
    tried = layers(cudnn=2e-3, xla=1e-3)
    sent = []

    def broadcast(value):
        sent.append(value)
        return json.loads(json.dumps(value if is_primary else ["xla", "of process 0", [], True]))

    monkeypatch.setattr(processes, "is_primary", lambda: is_primary)
    monkeypatch.setattr(processes, "broadcast_value", broadcast)
    config = config_of(TINY, num_devices=1)
    arguments = (config, BatchLayout.create(config, 1), jax.devices()[0], Clock(), Console().phase)
    chosen = attention.fastest_attention(*arguments)
    assert (chosen.name, chosen.tried, bool(tried), len(sent)) == ("xla", True, is_primary, 1)


def test_a_layer_runs_forward_and_backward_in_the_networks_shapes():
    config = config_of("llama:tiny", gradient_accumulation_steps=2, batch_size=8)
    layout = BatchLayout.create(config, 1)
    layer = attention._layer(config, layout, jax.devices()[0], "xla")
    y_BxTxNxF, gradients = layer._call()
    model, tokens = config.model, config.data.sequence_length
    width = model.width // model.heads
    queries, keys = (4, tokens, model.heads, width), (4, tokens, model.kv_heads, width)
    shapes = [queries, *(gradient.shape for gradient in gradients)]
    assert [y_BxTxNxF.shape, *shapes] == [queries, queries, queries, keys, keys]

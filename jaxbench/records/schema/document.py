"""run.json: what a run is, on what it ran, and how it ended."""

import dataclasses
from typing import Any, Required, TypedDict

from jaxbench.records.schema.base import SCHEMA_VERSION, stated_fields


class Git(TypedDict, total=False):
    """The commit of jaxbench's checkout, and whether it has changes."""

    commit: str
    dirty: bool


class Environment(TypedDict, total=False):
    """What a run ran on, see hardware/environment.py."""

    versions: dict[str, str]
    python: str
    platform: str
    hostname: str
    backend: str
    devices: list[dict[str, Any]]
    device_kind: str
    num_devices: int
    num_processes: int
    num_local_devices: int
    driver: str | None
    variables: dict[str, str]
    matmul_precision: str | None
    compile_cache: str | None
    git: Git | None
    cpu: str | None
    cpu_cores: int | None
    host_memory_bytes: int


class Data(TypedDict, total=False):
    """The data set as loaded, and how it reaches the devices."""

    feed: str
    steps_per_epoch: int
    description: str
    encoded: bool
    cache: dict[str, Any] | None
    train_examples: int
    eval_examples: int
    train_checksum: str | int
    eval_checksum: str | int
    mean: list[float] | None
    std: list[float] | None
    statistics: str


class RecordedPrice(TypedDict):
    """The price of the hardware, see analysis/pricing.py."""

    offer: str | None
    hardware: str | None
    devices: int | None
    usd_per_hour: float
    date: str | None
    source: str | None


class Attempt(TypedDict):
    """One process of a training run, see records/goodput.py."""

    started_at: str
    import_s: float
    resumed_phases_s: dict[str, float]
    phases_s: dict[str, float]
    doing: str


class Resumption(TypedDict, total=False):
    """A process that resumed a run: when, on what, from where, and which work was lost."""

    started_at: str
    checkpoint: str | None
    step: Required[int]
    elapsed_s: Required[float]
    lost_s: Required[float]
    damaged_checkpoints: dict[str, str]
    before: dict[str, Any]
    command_line: list[str]
    pid: int
    hostname: str | None
    versions: dict[str, str | None]
    XLA_FLAGS: str | None
    device_kind: str | None
    num_devices: int | None
    batch_norm_examples: int | None
    price: RecordedPrice | None
    short: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDocument:
    """The content of run.json.

    Fields without a default are there from the first moment on. The others are left out if they are
    None: `finished_at` and `summary` until the end, `resumes` of a run that was not resumed, and
    what belongs to other modes.
    """

    experiment: str
    mode: str
    status: str
    reason: str | None
    started_at: str
    finished_at: str | None = None
    target: str | None = None

    # The network and its work; of all modes but conv2d.
    task: str | None = None
    model: str | None = None
    models: int | None = None
    seeds: list[int] | None = None
    parameters: int | None = None
    forward_macs_per_image: int | None = None
    forward_macs_by_dtype: dict[str, int] | None = None
    training_flops_per_image: int | None = None
    attention: str | None = None
    batch_per_device: int | None = None
    batch_norm_examples: int | None = None
    data: Data | None = None
    config: dict[str, Any]

    # The flags of some modes.
    target_accuracy: float | None = None
    rounds: int | None = None
    steps_per_call: int | None = None
    page_cache: str | None = None
    scaling: str | None = None
    device_counts: list[int] | None = None
    link_gb_per_s: float | None = None
    problems: list[dict[str, Any]] | None = None

    telemetry_s: float
    price: RecordedPrice | None
    command_line: list[str]
    working_directory: str
    pid: int
    environment: Environment
    resumes: list[Resumption] | None = None
    attempts: list[Attempt] | None = None
    summary: dict[str, Any] | None = None  # the summary record without its kind

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, `schema_version` first."""
        return {"schema_version": SCHEMA_VERSION, **stated_fields(self)}

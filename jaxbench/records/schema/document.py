"""run.json: what a run is, on what it ran, and how it ended."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import MODES, SCHEMA_VERSION, stated_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDocument:
    """The content of run.json.

    Fields without a default are there from the first moment on. The others are left out where they
    are None: `finished_at` and `summary` until the end, `resumes` of a run that was not resumed,
    and what belongs to other modes.
    """

    experiment: str
    mode: str
    status: str
    reason: str | None
    started_at: str
    finished_at: str | None = None

    # The network and its work; of all modes but conv2d.
    task: str | None = None
    model: str | None = None
    models: int | None = None
    seeds: list[int] | None = None
    parameters: int | None = None
    forward_macs_per_image: int | None = None
    training_flops_per_image: int | None = None
    batch_per_device: int | None = None
    # How many images a batch-norm layer takes its statistics from; None without such a layer.
    batch_norm_examples: int | None = None
    data: dict[str, Any] | None = None
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
    price: dict[str, Any] | None
    command_line: list[str]
    working_directory: str
    pid: int
    environment: dict[str, Any]
    resumes: list[dict[str, Any]] | None = None
    summary: dict[str, Any] | None = None

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}: must be one of {', '.join(MODES)}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, `schema_version` first."""
        return {"schema_version": SCHEMA_VERSION, **stated_fields(self)}

"""run.json: what a run is, on what it ran, and how it ended."""

import dataclasses
from typing import Any

from jaxbench.records.schema.base import SCHEMA_VERSION, stated_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDocument:
    """The content of run.json.

    Fields without a default are there from the first moment on. The others are left out where they
    are None: `finished_at` and `summary` until the end, `resumes` of a run that was not resumed,
    and what belongs to other modes.

    Attributes:
      experiment: what followed `--experiment=`.
      mode: what the run did, as in `--mode`; compile with --target.
      target: the machine that was compiled for, which is not here.
      status: one of run_dir.STATUSES; `running` also after a kill.
      reason: why it ended otherwise than done; null where there is nothing to say.
      started_at, finished_at: date and time (UTC, ISO 8601).
      task: what the network predicts.
      model: name of the network's configuration class.
      models: number of models that train at once.
      seeds: seed of each model.
      parameters: number of trained parameters of one model.
      forward_macs_per_image: multiply-accumulates of the forward pass for one image.
      forward_macs_by_dtype: the same by the type of the operands, as found in the traced network.
      attention: implementation of attention that the traced network calls, xla or cudnn; of
        networks of transformer blocks.
      training_flops_per_image: floating-point operations of a training step for one image.
      batch_per_device: images of a step on each device.
      batch_norm_examples: images over which a batch-norm layer takes its statistics; null without
        one.
      data: the data set as loaded, and how it reaches the devices.
      config: all fields of the experiment.
      target_accuracy, rounds, steps_per_call, page_cache, scaling, link_gb_per_s: value of the flag
        of this name.
      device_counts: numbers of devices that were measured.
      problems: the convolutions of --mode=conv2d: shapes and multiply-accumulates.
      telemetry_s: seconds between readings of devices and host; 0 is off.
      price: price of the hardware that was stated; null where none was.
      command_line: the command, as a list of arguments.
      working_directory: folder in which the command ran.
      pid: process id.
      environment: hardware, driver, versions, environment variables and commit.
      resumes: one entry for each time the run was resumed: when, on what, and which work was lost.
      attempts: one entry for each process of a training run, one after another: when it started,
        and its time by phase; see records/goodput.py.
      summary: the summary record, without its kind.
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
    attempts: list[dict[str, Any]] | None = None
    summary: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, `schema_version` first."""
        return {"schema_version": SCHEMA_VERSION, **stated_fields(self)}

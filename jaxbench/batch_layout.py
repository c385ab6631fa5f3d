"""How a batch is split over models, processes and devices: the one place that divides it."""

import dataclasses

from jaxbench.config import Config
from jaxbench.errors import BadInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """The sizes of a training step's and an evaluation step's batch.

    The devices of process 0 come first, every process has as many, and so has every model.
    """

    global_batch: int  # images of one model in a training step, over all its devices
    # Images of one model in an evaluation step. Any number will do: the last devices' are padded.
    global_eval_batch: int
    num_devices: int  # D, of all processes
    process_index: int
    num_processes: int
    num_models: int  # R, 1 or D
    # Parts in which a device works through its training batch.
    gradient_accumulation_steps: int

    @classmethod
    def create(
        cls, config: Config, num_devices: int, process: tuple[int, int] = (0, 1)
    ) -> "BatchLayout":
        """Return the layout of an experiment; `process` is (index, count) of the processes.

        Raises:
          BadInput: the batch does not split evenly over the devices of one model, in
            `gradient_accumulation_steps` equal parts each, of pairs if mixup mixes pairs.
        """
        multiple, parts = batch_multiple(config, num_devices), config.gradient_accumulation_steps
        if config.batch_size % multiple:
            devices = num_devices // config.num_models(num_devices)
            below = config.batch_size // multiple * multiple
            raise BadInput(
                f"batch_size={config.batch_size} does not divide over {devices} "
                + ("devices" if devices > 1 else "device")
                + (f" in {parts} parts each" if parts > 1 else "")
                + (" in pairs, which data.mixup mixes" if config.data.mixup else "")
                + "; the nearest that do: "
                + " and ".join(str(size) for size in (below, below + multiple) if size)
            )
        return cls(
            global_batch=config.batch_size,
            global_eval_batch=config.eval_batch_size or config.batch_size,
            num_devices=num_devices,
            process_index=process[0],
            num_processes=process[1],
            num_models=config.num_models(num_devices),
            gradient_accumulation_steps=parts,
        )

    @property
    def devices_per_model(self) -> int:
        return self.num_devices // self.num_models

    @property
    def devices_per_process(self) -> int:
        return self.num_devices // self.num_processes

    @property
    def local_slice(self) -> slice:
        """Return which of the D devices belong to this process."""
        first = self.process_index * self.devices_per_process
        return slice(first, first + self.devices_per_process)

    @property
    def batch_per_device(self) -> int:
        """Return B, the images of a training step on one device."""
        return self.global_batch // self.devices_per_model

    @property
    def batch_per_process(self) -> int:
        """Return the images of a training step that one process prepares."""
        return self.batch_per_device * self.devices_per_process

    @property
    def images_per_step(self) -> int:
        """Return the images of a training step, of all models together."""
        return self.global_batch * self.num_models


def batch_multiple(config: Config, num_devices: int) -> int:
    """Return what the global batch must be a multiple of on this many devices."""
    devices_per_model = num_devices // config.num_models(num_devices)
    pairs = 2 if config.data.mixup else 1
    return config.gradient_accumulation_steps * devices_per_model * pairs

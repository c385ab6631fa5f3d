"""What both sides compute: the experiment as it is compared, and its description for PyTorch."""

import dataclasses
from typing import Any

from pytorch_names import NAMES

from jaxbench.cli import registry
from jaxbench.config import Config, DataConfig
from jaxbench.errors import BadInput
from jaxbench.modes.runner import with_feed

PRECISIONS = ("fp32", "bf16", "fp16")


def load_config(experiment: str, batch_size: int, precision: str) -> Config:
    """Return the experiment as it is compared: on one device, with a synthetic batch.

    Raises:
      BadInput: it is none that can be compared.
    """
    config = registry.load(experiment)
    model = type(getattr(config, "model", None)).__name__.removesuffix("Config")
    if not isinstance(config, Config) or model not in NAMES:
        raise BadInput(
            f"--experiment={experiment}: its network has no counterpart in PyTorch; resnet50, "
            "wrn28_10, cnn10, vit_s16_synthetic and gpt124m_synthetic have"
        )
    if config.optimizer.name not in ("sgd", "nesterov", "adamw"):
        raise BadInput(
            f"--experiment={experiment}: optimizer.name={config.optimizer.name!r}; sgd, nesterov "
            "and adamw are compared"
        )
    plain = {"bias_learning_rate": 0, "head_learning_rate": 0, "weight_decay_mode": "coupled"}
    for field, value in plain.items():
        if getattr(config.optimizer, field) != value:
            raise BadInput(
                f"--experiment={experiment}: optimizer.{field}="
                f"{getattr(config.optimizer, field)!r}; compared is {value!r} alone, what "
                "PyTorch's optimizers do"
            )
    kept = ("image_shape", "num_classes", "sequence_length")
    config.data = DataConfig(
        source="synthetic", **{name: getattr(config.data, name) for name in kept}
    )
    held = {"schedule": "constant", "warmup_epochs": 0.0}
    for field in dataclasses.fields(config.optimizer):
        if field.name in ("decay_at", "decay_factor"):
            held[field.name] = field.default
    config.optimizer = dataclasses.replace(config.optimizer, **held)
    config.batch_size = batch_size or config.batch_size
    config.precision = precision or config.precision
    if config.precision not in PRECISIONS:
        raise BadInput(f"--precision={config.precision}: must be one of {', '.join(PRECISIONS)}")
    config.num_devices, config.gradient_accumulation_steps, config.replicas = 1, 1, "data_parallel"
    return with_feed(config, "synthetic")


def pytorch_task(config: Any, variant: str, platform: str) -> dict[str, Any]:

    optimizer, data = config.optimizer, config.data
    rate = optimizer.learning_rate * config.batch_size / optimizer.base_batch_size
    if optimizer.name == "adamw":
        settings = {"betas": (optimizer.b1, optimizer.b2), "eps": optimizer.eps}
    else:
        nesterov = optimizer.name == "nesterov" and optimizer.momentum > 0
        settings = {"momentum": optimizer.momentum, "nesterov": nesterov}
    return {
        "variant": variant,
        "device": "cuda" if platform == "gpu" else "cpu",
        "arguments": dataclasses.asdict(config.model)
        | {"num_classes": data.num_classes, "sequence_length": data.sequence_length},
        "label_smoothing": config.label_smoothing,
        "optimizer": {
            "name": "AdamW" if optimizer.name == "adamw" else "SGD",
            "settings": {"lr": rate} | settings,
            "weight_decay": optimizer.weight_decay,
            "weight_decay_on": optimizer.weight_decay_on,
            "max_gradient_norm": optimizer.max_gradient_norm,
        },
    }

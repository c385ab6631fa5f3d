"""ResNet-50 on synthetic images: the throughput table of the 2018 comparison of TPUv2 and V100.

    python -m jaxbench.main --experiment=resnet50_synthetic --experiment.batch_size=1024

Recipe of: "Google TPUv2 vs Nvidia V100 on ResNet-50" (Habr, 2018): images per second at global
batch 128, 256, 512 and 1024, synthetic data, no augmentation: at 1024 3186 images/s on a Cloud TPU
v2-8 (bf16), 3128 on four V100 (fp16 mixed), and about 3280 on four V100 with MXNet at batch 768. On
V100 give `--experiment.precision=fp16`: they have no units for bf16.
The same network and update rule as `resnet50`; one epoch is 2,048 images, of which the first holds
what has to warm up: read `images_per_s` of the later epochs.
Hardware: one or more GPUs or TPUs of 32 GB for 256 images each: a V100 needs 19.06 GiB for them.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.resnet import ResNetConfig


def get_config() -> Config:
    return Config(
        model=ResNetConfig(),
        data=DataConfig(
            source="synthetic",
            image_shape=(224, 224, 3),
            num_classes=1000,
            train_examples=2048,
            eval_examples=256,
        ),
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=0.1,
            base_batch_size=256,
            weight_decay=5e-5,
            weight_decay_on="kernels",
            schedule="constant",
        ),
        label_smoothing=0.1,
        batch_size=1024,
        epochs=10,
        precision="bf16",
    )


def tiny(config: Config) -> Config:
    """Images of 32x32, one narrow block a stage, two epochs."""
    config.model = ResNetConfig(stages=(1, 1, 1, 1), width=8)
    config.data.image_shape = (32, 32, 3)
    config.data.num_classes = 10
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.optimizer.base_batch_size = 64
    config.batch_size = 64
    config.epochs = 2
    return config

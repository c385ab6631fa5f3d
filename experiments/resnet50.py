"""ResNet-50 on images of 224x224, as in the 2018 comparison of 4 TPUv2 with 4 V100.

    python -m jaxbench.main --experiment=resnet50 --experiment.data.path=FOLDER

Recipe of: "Google TPUv2 vs Nvidia V100 on ResNet-50" (Habr, 2018): global batch 1024, 75.7 % top-1
after 64 epochs and 76.4 % after 86 on a Cloud TPU v2-8 at 2796 images/s (bf16), 75.7 % after 84 on
four V100 at 2839 images/s. Momentum 0.9, rate 0.1 for each 256 of batch (Goyal et al. 2017), five
epochs of warm-up, cosine over 90 epochs, label smoothing 0.1, weight decay 5e-5 on kernels only,
each block's last batch norm begins at 0. `resnet50:step` has the step schedule of the articles'
time.
FOLDER holds `train/<class>/*.JPEG` and `val/`; images are decoded on the fly, or with
`--experiment.data.feed=resident` read whole (as many as fit: `--experiment.data.train_examples`)
and centre-cropped. A TFDS copy: `--experiment.data.source=tfds --experiment.data.name=imagenet2012
--experiment.data.eval_split=validation`. The top-1 above has not been tried yet.
Hardware: one or more GPUs or TPUs, of 32 GB each for a batch of 256 images a device.
Expected: 76.4 % top-1 after 86 epochs, as published.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.resnet import ResNetConfig


def get_config() -> Config:
    return Config(
        model=ResNetConfig(),
        data=DataConfig(
            source="folder",
            feed="stream",
            random_resized_crop=True,
            image_shape=(224, 224, 3),
            num_classes=1000,
            eval_split="val",
            flip=True,
        ),
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=0.1,
            base_batch_size=256,
            weight_decay=5e-5,
            weight_decay_on="kernels",
            schedule="cosine",
            warmup_epochs=5,
        ),
        label_smoothing=0.1,
        batch_size=1024,
        epochs=90,
        precision="bf16",
    )


def variant_synthetic(config: Config) -> Config:
    """ResNet-50 on synthetic images: the throughput table of the 2018 comparison of TPUv2 and V100.

        python -m jaxbench.main --experiment=resnet50:synthetic --experiment.batch_size=1024

    Recipe of: "Google TPUv2 vs Nvidia V100 on ResNet-50" (Habr, 2018): images per second at global
    batch 128, 256, 512 and 1024, no augmentation: at 1024 3186 images/s on a Cloud TPU v2-8 (bf16),
    3128 on four V100 (fp16 mixed; `--experiment.precision=fp16`), and about 3280 on four V100 with
    MXNet at batch 768. An epoch is 2,048 images; the first one includes warm-up: read
    `images_per_s` of the later ones.
    """
    config.data = DataConfig(image_shape=(224, 224, 3), num_classes=1000).synthetic(2048, 256)
    config.optimizer.schedule, config.optimizer.warmup_epochs = "constant", 0.0
    config.epochs = 10
    return config


def variant_step(config: Config) -> Config:
    """ResNet-50 by the step schedule: times 0.1 after 30, 60 and 80 of 90 epochs.

        python -m jaxbench.main --experiment=resnet50:step --experiment.data.path=FOLDER

    Recipe of: Goyal et al., "Accurate, Large Minibatch SGD" (2017), whose decays these are; the
    rest is as in `resnet50`.
    """
    config.optimizer.schedule = "step"
    # No decimal fraction of a few digits is just at the end of these epochs.
    config.optimizer.decay_at = (30 / 90, 60 / 90, 80 / 90)
    return config


def tiny(config: Config) -> Config:
    """Synthetic images of 32x32, one narrow block a stage, two epochs."""
    config.model = ResNetConfig(stages=(1, 1, 1, 1), width=8)
    config.data = config.data.synthetic(image_shape=(32, 32, 3), num_classes=10)
    config.batch_size = config.optimizer.base_batch_size = 64
    config.optimizer.warmup_epochs = 0.0
    config.epochs = 2
    return config

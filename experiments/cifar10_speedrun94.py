"""CIFAR-10 to 94 % as fast as can be on one device: 8 epochs of a small network with Muon.

    python -m jaxbench.main --experiment=cifar10_speedrun94 --experiment.data.path=FOLDER
    python -m jaxbench.sweep --experiment=cifar10_speedrun94 --experiment.data.path=FOLDER \
        --grid=seed=0,1,2,3,4

Recipe of: K. Jordan's cifar10-airbench (airbench94_muon; "94% on CIFAR-10 in 3.29 Seconds on a
Single GPU", arXiv 2404.00498): 94.01 % in 2.59 s on one A100, mean of 200 runs, PyTorch 2.4, with
test-time augmentation: compare `eval_top1_tta`. The 2.59 s include training, whitening and the last
evaluation, not compiling and sending the data: `train_time_s`, `init_from_images` of `phases_s` and
the last epoch's `eval_time_s`. `--mode=describe --target=gpu:a100` predicts training by JAX alone:
2.59 s are inside its 90 % interval, and below its 80 % one.
Unlike the recipe: bf16 for fp16 (`--experiment.precision=fp16` was not tried at full size), Muon's
iterations in fp32, the logits' scale follows the width, batch norm's epsilon is 1e-5.
Seen: 94.15 % after 8 epochs, 93.26 % without test-time augmentation (seed 0, fp32, two CPU cores,
45 minutes and more). `--target_accuracy=0.94` needs more epochs.
On one H100 80GB HBM3 (three seeds, one run each, bf16, 2026-11-27): 1.25 to 1.41 s of training,
0.21 to 0.23 s of whitening, 93.29 to 93.50 % (92.43 to 92.91 % without test-time augmentation).
CIFAR-10 was recompressed as JPEGs of quality 95; whether that explains the missing 0.6 % is open.
Hardware: one GPU of 16 GB.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.speed_net import SpeedNetConfig


def get_config() -> Config:
    return Config(
        model=SpeedNetConfig(),
        data=DataConfig(
            source="tfds", name="cifar10", crop_padding=2, flip=True, flip_order="alternating"
        ),
        # The rates are for the mean loss over the batch: of a sum over 2,000 they are a 2,000th.
        optimizer=OptimizerConfig(
            name="muon",
            learning_rate=0.24,
            momentum=0.6,
            newton_schulz_steps=3,
            norm_interval=(1, 1),
            bias_learning_rate=106,
            head_learning_rate=1340,
            sgd_momentum=0.85,
            weight_decay=0.004,
            weight_decay_mode="decoupled",
            base_batch_size=2000,
            schedule="linear",
        ),
        label_smoothing=0.2,
        batch_size=2000,
        epochs=8,
        num_devices=1,
        precision="bf16",
        test_time_augmentation="mirror_translate",
    )


def variant_2025(config: Config) -> Config:
    """CIFAR-10 to 94 % by the recipe of the record of 2025: 243 steps of 1,536 images, SiLU, Muon.

        python -m jaxbench.main --experiment=cifar10_speedrun94:2025 --experiment.data.path=FOLDER

    Recipe of: hiverge's cifar10-speedrun (github.com/hiverge/cifar10-speedrun, commit 5cd49b1 of
    2025-09-30): 94.01 % in 2.015 s on one A100, mean of 200 runs: compare `eval_top1_tta`. Every
    change to `cifar10_speedrun94` is a field.
    Also unlike the recipe: contrast is stretched around an image's mean, not the data set's, and
    pixels stay within 0 to 255; unsure images are chosen within an evaluation batch
    (`--experiment.eval_batch_size=10000` chooses among all); moved views have half of the weight of
    unmoved ones; Muon's kernels do not decay.
    Seen: 94.00 % as the mean of five seeds with test-time augmentation, 93.08 % without (fp32, two
    CPU cores).
    Hardware: one GPU of 16 GB; its time has not been measured.
    """
    # The bias of the whitening trains for 7 steps of 32.
    config.model = SpeedNetConfig(
        activation="silu", whitening_images=960, whitening_bias_epochs=0.22, norm_momentum=0.5566
    )
    # Published in units of the pixels' standard deviation: 0.1399 times 64 grey levels.
    config.data.brightness = 8.9
    config.data.contrast = (0.8692, 1.1308)
    # The rates are for the mean loss over the batch: of a sum over 1,536 they are a 1,536th.
    config.optimizer.learning_rate = 0.205
    config.optimizer.momentum = 0.655
    config.optimizer.newton_schulz_coefficients = (3.4576, -4.7391, 2.0843)
    config.optimizer.norm_interval = (2, 17)
    config.optimizer.bias_learning_rate = 88.0
    config.optimizer.head_learning_rate = 831.7
    config.optimizer.sgd_momentum = 0.825
    config.optimizer.weight_decay = 0.0016
    config.optimizer.base_batch_size = config.batch_size = 1536
    config.label_smoothing = 0.09
    config.epochs = 7.59
    config.eval_every_epochs = 8
    config.test_time_augmentation_fraction = 0.25
    return config


def tiny(config: Config) -> Config:
    """Synthetic images, an eighth of the channels, two epochs, or one and a half."""
    config.model.channels = (8, 32, 32)
    config.model.whitening_images = 100
    config.data = config.data.synthetic()
    config.num_devices = 0
    config.precision = "fp32"
    config.batch_size = config.optimizer.base_batch_size = 64
    # Gradients of few images are noisy.
    config.optimizer.bias_learning_rate = 2
    config.optimizer.head_learning_rate = 40
    config.epochs = 1.5 if config.epochs % 1 else 2
    return config

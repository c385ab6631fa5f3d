"""CIFAR-10 to 94 % as fast as can be on one device: 8 epochs of a small network with Muon.

    python -m jaxbench.main --experiment=cifar10_speedrun94 --experiment.data.path=FOLDER
    python -m jaxbench.sweep --experiment=cifar10_speedrun94 --experiment.data.path=FOLDER \
        --grid=seed=0,1,2,3,4

Recipe of: K. Jordan's cifar10-airbench (airbench94_muon; "94% on CIFAR-10 in 3.29 Seconds on a
Single GPU", arXiv 2404.00498): 94.01 % in 2.59 s on one A100, mean of 200 runs, PyTorch 2.4. The
published accuracy is with test-time augmentation: compare `eval_top1_tta` with it. `eval_top1`, of
each image as it is, is lower. Its 2.59 s hold the training, the whitening and the last
evaluation, and neither compiling nor sending the data over: `train_time_s`, `init_from_images` of
`phases_s` and the last epoch's `eval_time_s` here.
Unlike there: bf16 where the original has fp16 (`--experiment.precision=fp16` has a loss scale, and
was not tried at full size), and Muon's iterations in fp32; the logits' scale goes by the width (the
same at the published one); batch norm's epsilon is 1e-5.
Seen: 94.15 % with test-time augmentation after 8 epochs, 93.26 % without (seed 0, fp32, two CPU
cores, where it takes 45 minutes and more; top-1 after each epoch is in
docs/decisions/training.md).
A run to 94 % without test-time augmentation: `--target_accuracy=0.94`, with more epochs. To
evaluate once only: `--experiment.eval_every_epochs=8`.
Hardware: one GPU of 16 GB; goal on an H200: under 3 s of training. That has not been measured: no
accelerator was at hand.
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


def tiny(config: Config) -> Config:
    """Synthetic images, an eighth of the channels, two epochs."""
    config.model = SpeedNetConfig(channels=(8, 32, 32), whiten_images=100)
    config.data.source = "synthetic"
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.num_devices = 0
    config.precision = "fp32"
    config.batch_size = 64
    config.optimizer.base_batch_size = 64
    # Gradients of few images are noisy.
    config.optimizer.bias_learning_rate = 2
    config.optimizer.head_learning_rate = 40
    config.epochs = 2
    return config

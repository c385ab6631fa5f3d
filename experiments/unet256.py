"""A U-Net on images of 256x256 as in the 2020 comparison of one RTX 2080 Ti with two GPUs.

    python -m jaxbench.main --experiment=unet256 --experiment.data.path=FOLDER
    python -m jaxbench.main --experiment=unet256 --experiment.data.source=npz \
        --experiment.data.path=nuclei.npz

Recipe of: "multiple GPUs with an RTX 2080 Ti and a GTX 1080" (Hatena blog, 2020-12): batch 8 was
the most that one RTX 2080 Ti (11 GB) held reliably, 32 ran on it and a GTX 1080 together, and an
epoch at 32 took about 3/4 of the time at 8. Neither the data nor the accuracy was published; here
Oxford-IIIT Pet (TFDS `oxford_iiit_pet`: 3,680 images, 3,669 to test; pet and border against
background), or any .npz of images and masks; Adam at 1e-4 for a batch of 8, mirrored at random.
Hardware: a GPU or TPU of 8 GB for a batch of 8 (`--experiment.precision=bf16` halves it). On two
CPU cores `--experiment.model.width=8 --experiment.optimizer.learning_rate=0.002
--experiment.epochs=6` on 334 real images of cell nuclei gives a Dice of 0.80 or more on the
held-out fifth in a few minutes.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.unet import UNetConfig


def get_config() -> Config:
    return Config(
        model=UNetConfig(),
        task="segmentation",
        data=DataConfig(
            source="tfds",
            name="oxford_iiit_pet",
            image_shape=(256, 256, 3),
            num_classes=2,
            flip=True,
        ),
        optimizer=OptimizerConfig(
            name="adam", learning_rate=1e-4, base_batch_size=8, schedule="cosine"
        ),
        batch_size=8,
        epochs=40,
    )


def tiny(config: Config) -> Config:
    """Synthetic discs of 32x32, two levels of 4 and 8 channels, two epochs."""
    config.model = UNetConfig(width=4, levels=2)
    config.data = config.data.synthetic(128, 50, image_shape=(32, 32, 3))
    config.batch_size = 16
    config.optimizer.learning_rate = 0.01
    config.epochs = 2
    return config

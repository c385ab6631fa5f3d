"""ViT-S/16 on ImageNet by the plain recipe: 76.5 % top-1 after 90 epochs.

    python -m jaxbench.main --experiment=vit_s16 --experiment.data.path=FOLDER

Recipe of: Beyer, Zhai and Kolesnikov, "Better plain ViT baselines for ImageNet-1k" (arXiv
2205.01580, 2022): 76.5 % top-1 after 90 epochs, 78.5 after 150, 80.0 after 300
(`--experiment.epochs`), 6 to 7 hours for 90 on a TPUv3-8. Adam at 0.001 with decoupled weight decay
on kernels, 10,000 steps of warm-up, then a cosine to 0; gradients of norm 1 at most; random crops,
mirroring, RandAugment and mixup. Their weight decay of 1e-4 is not multiplied by the learning rate;
AdamW's 0.1 at 0.001 is the same.
Unlike there: pixels have ImageNet's mean and deviation rather than -1 to 1, crops have at least 8 %
of an image (5 % there), mixup draws a weight for each pair of images, Adam's first moment is fp32
(bf16 there), biases start at 0 (within 1e-6 of it there), and no training images are held out (1 %
there); for RandAugment see `jaxbench/data/rand_augment.py`.
ViT-B/16: `--experiment.model.width=768 --experiment.model.heads=12`. FOLDER and a TFDS copy are as
for `resnet50`. The top-1 above has not been tried yet.
Hardware: one or more GPUs or TPUs of 16 GB for 128 images each. Expected: 76.5 % top-1, as
published.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.vit import ViTConfig


def get_config() -> Config:
    return Config(
        model=ViTConfig(),
        data=DataConfig(
            source="folder",
            feed="stream",
            random_resized_crop=True,
            image_shape=(224, 224, 3),
            num_classes=1000,
            eval_split="val",
            flip=True,
            rand_augment=(2, 10),
            mixup=0.2,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=0.001,
            base_batch_size=1024,
            weight_decay=0.1,
            weight_decay_on="kernels",
            max_gradient_norm=1.0,
            schedule="cosine",
            # 10,000 steps of 1,251 an epoch.
            warmup_epochs=8,
        ),
        batch_size=1024,
        epochs=90,
        precision="bf16",
    )


def variant_synthetic(config: Config) -> Config:
    """ViT-S/16 on synthetic images: images per second of a vision transformer.

        python -m jaxbench.main --experiment=vit_s16:synthetic --experiment.batch_size=1024

    No augmentation. An epoch is 2,048 images; the first one includes warm-up: read `images_per_s`
    of the later ones. run.json says which attention ran; with `--experiment.remat=blocks` larger
    batches fit.
    """
    config.data = DataConfig(image_shape=(224, 224, 3), num_classes=1000).synthetic(2048, 256)
    config.optimizer.schedule, config.optimizer.warmup_epochs = "constant", 0.0
    config.epochs = 10
    return config


def tiny(config: Config) -> Config:
    """Synthetic images of 32x32, two narrow blocks, two epochs."""
    config.model = ViTConfig(patch=8, width=32, depth=2, heads=2)
    config.data = config.data.synthetic(image_shape=(32, 32, 3), num_classes=10)
    config.batch_size = config.optimizer.base_batch_size = 64
    config.optimizer.warmup_epochs = 0.0
    config.optimizer.learning_rate = 0.005
    config.epochs = 2
    return config

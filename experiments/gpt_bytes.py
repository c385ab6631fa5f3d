"""A small language model of bytes on text that ships with Python: minutes on two CPU cores.

    python -m jaxbench.main --experiment=gpt_bytes
    python -m jaxbench.main --experiment=gpt_bytes --experiment.data.path=FILE

The text is the documentation of Python's language in its own standard library (466 KB in Python
3.11), of which the last tenth is held out; or any file. A token is a byte: there is no tokenizer.
0.82 million parameters, 15 epochs.
Seen: 1.72 bits per byte and 68.8 % of the next bytes of the held-out text (seed 0, two CPU cores
that other work shared, 21 minutes; docs/decisions/training.md has more). From epoch 12 on
the network learns the text by heart: 1.70 there is the least. That was before
`weight_decay_on=kernels` held for embeddings too; since then it has not been measured.
Hardware: anything.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.gpt import GptConfig


def get_config() -> Config:
    return Config(
        model=GptConfig(width=128, depth=4, heads=4, positions="rotary"),
        task="language_model",
        data=DataConfig(source="text", sequence_length=256, num_classes=256),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=2e-3,
            base_batch_size=16,
            b2=0.99,
            weight_decay=0.1,
            weight_decay_on="kernels",
            schedule="cosine",
            warmup_epochs=1,
        ),
        batch_size=16,
        epochs=15,
    )


def tiny(config: Config) -> Config:
    """Two narrow blocks on the first 256 sequences of 64 bytes, two epochs."""
    config.model = GptConfig(width=32, depth=2, heads=2, positions="rotary")
    config.data.sequence_length = 64
    config.data.train_examples = 256
    config.data.eval_examples = 100
    config.epochs = 2
    return config

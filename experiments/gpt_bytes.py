"""A small language model of bytes on text that ships with Python: minutes on two CPU cores.

    python -m jaxbench.main --experiment=gpt_bytes
    python -m jaxbench.main --experiment=gpt_bytes --experiment.data.path=FILE

The text is the documentation of Python's language in its standard library (466 KB in Python 3.11),
of which the last tenth is held out; or any file. A token is a byte. 0.82 million parameters.
Seen: 1.72 bits per byte and 68.8 % of the next bytes of the held-out text (seed 0, two CPU cores
that other work shared, 21 minutes), the least 1.70 after 12 of 15 epochs; not measured again since
`weight_decay_on=kernels` covers embeddings.
Hardware: anything; 21 minutes on two busy CPU cores.
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
    config.data.train_examples, config.data.eval_examples = 256, 100
    config.epochs = 2
    return config

"""GPT-2 small on synthetic tokens: throughput, and how it falls with the length of sequences.

    python -m jaxbench.main --experiment=gpt124m_synthetic --mode=throughput
    python -m jaxbench.sweep --experiment=gpt124m_synthetic --mode=throughput \
        --experiment.remat=blocks --experiment.batch_size=8 \
        --grid=data.sequence_length=1024,2048,4096,8192

The shapes of GPT-2 small (Radford et al. 2019): 124,439,808 parameters at 1024 tokens, vocabulary
50,257, and AdamW with the moments and weight decay of GPT-3 (Brown et al. 2020). The logits of 1024
tokens take 0.2 GB in fp32: `--experiment.data.num_classes=256` makes them small for long sequences.
Hardware: one or more GPUs or TPUs. For one H100 XLA plans 25 GiB for the batch of 32, and with
`remat=blocks`, 256 classes and cuDNN's attention 15.6 GiB for one sequence of 262,144 tokens.
"""

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.gpt import GptConfig


def get_config() -> Config:
    return Config(
        model=GptConfig(width=768, depth=12, heads=12),
        task="language_model",
        data=DataConfig(sequence_length=1024, num_classes=50257).synthetic(512, 64),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=6e-4,
            base_batch_size=512,
            b2=0.95,
            weight_decay=0.1,
            weight_decay_on="kernels",
            schedule="cosine",
            warmup_epochs=1,
        ),
        batch_size=32,
        epochs=10,
        precision="bf16",
    )


def tiny(config: Config) -> Config:
    """Two narrow blocks, sequences of 64 tokens of 1,000, two epochs."""
    config.model = GptConfig(width=32, depth=2, heads=2)
    config.data = config.data.synthetic(sequence_length=64, num_classes=1000)
    config.batch_size = config.optimizer.base_batch_size = 16
    config.epochs = 2
    return config

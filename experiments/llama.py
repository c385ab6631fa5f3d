"""Llama of 1 or 8 billion parameters, and LoRA of it, on bytes or on synthetic tokens.

    python -m jaxbench.main --experiment=llama:tiny
    python -m jaxbench.main --experiment=llama:synthetic --mode=throughput
    python -m jaxbench.main --experiment=llama:8b --mode=throughput --experiment.batch_size=16
    python -m jaxbench.main --experiment=llama:lora --mode=memory

The shapes of TinyLlama 1.1B (Zhang et al. 2024). Without a variant a token is a byte of a text, as
in gpt_bytes: `--experiment.data.path=FILE`. AdamW with the moments, weight decay and clipping of
Llama (Touvron et al. 2023). No tokenizer ships, so larger vocabularies are synthetic.
Hardware: one or more GPUs or TPUs; the state of 0.97 billion parameters (bytes) is 11.6 GB in fp32.
"""

import dataclasses

from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.llama import LlamaConfig


def get_config() -> Config:
    return Config(
        model=LlamaConfig(),
        task="language_model",
        data=DataConfig(source="text", sequence_length=2048, num_classes=256),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=4e-4,
            base_batch_size=8,
            b2=0.95,
            weight_decay=0.1,
            weight_decay_on="kernels",
            max_gradient_norm=1.0,
            schedule="cosine",
            warmup_epochs=1,
        ),
        batch_size=8,
        epochs=10,
        precision="bf16",
    )


def variant_synthetic(config: Config) -> Config:
    """TinyLlama 1.1B with its vocabulary of 32,000 on synthetic tokens: throughput."""
    config.data = config.data.synthetic(num_classes=32000)
    return config


def variant_8b(config: Config) -> Config:
    """Llama 3 8B on synthetic tokens: its state of 96 GB is split over the devices."""
    config.model = LlamaConfig(
        width=4096,
        depth=32,
        kv_heads=8,
        mlp_width=14336,
        rope_base=500_000.0,
        max_tokens=8192,
    )
    config.data = config.data.synthetic(sequence_length=8192, num_classes=128256)
    config.parallelism, config.remat = "fsdp", "blocks"
    return config


def variant_lora(config: Config) -> Config:
    """LoRA of rank 16 on Llama 3 8B, 2,048 synthetic tokens: 42 million parameters are trained."""
    config = variant_8b(config)
    config.model = dataclasses.replace(config.model, lora_rank=16, lora_alpha=32.0)
    config.data.sequence_length = 2048
    config.parallelism, config.optimizer.weight_decay = "pmap", 0.01
    return config


def tiny(config: Config) -> Config:
    """Two narrow blocks, 256 sequences of 64 tokens, two epochs."""
    config.model = dataclasses.replace(
        config.model, width=32, depth=2, heads=4, kv_heads=2, mlp_width=88
    )
    synthetic, data = config.data.source == "synthetic", config.data
    data.num_classes = 1000 if synthetic else 256
    data.sequence_length, data.train_examples, data.eval_examples = 64, 256, 100
    config.batch_size = config.optimizer.base_batch_size = 16
    config.optimizer.learning_rate, config.epochs = 4e-3, 2
    return config

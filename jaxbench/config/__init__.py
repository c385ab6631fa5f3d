"""What an experiment is. Importing this needs neither JAX nor a device."""

from jaxbench.config.data import DataConfig as DataConfig
from jaxbench.config.experiment import Config as Config
from jaxbench.config.experiment import Experiment as Experiment
from jaxbench.config.model import ModelConfig as ModelConfig
from jaxbench.config.optimizer import OptimizerConfig as OptimizerConfig

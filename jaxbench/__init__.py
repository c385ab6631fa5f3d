"""jaxbench: how fast, how accurate and how expensive is training on this accelerator?"""

__version__ = "0.1.0"

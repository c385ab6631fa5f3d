"""One file a mode of `jaxbench.main`; `setup` is how each of them begins."""

"""The persistent compilation cache: its folder, and whether a compilation was a hit.

JAX keeps compiled programs in a folder, keyed by program, compiler, flags and devices. It runs them
as they are, so the folder must belong to the user.
"""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

import jax

from jaxbench.errors import BadInput
from jaxbench.paths import user_cache, user_path

_HIT, _MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


def use_compile_cache(setting: str = "", *, by_names: bool = False) -> str | None:
    """Turn the cache on, before anything is compiled.

    Args:
      setting: a folder; `off`; or empty for $JAX_COMPILATION_CACHE_DIR, else the user's
        `~/.cache/jaxbench/xla`.
      by_names: whether the names of a program's parts belong to its key: a profile then shows this
        code's names, not those of the code that filled the cache.

    Returns:
      The folder; None if the cache is off, or if the user has no folder that can be written.

    Raises:
      BadInput: the folder of the setting or of the variable cannot be written.
    """
    folder = None
    if setting != "off":
        try:
            folder = cache_folder(setting)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError("cannot be written")
        except (BadInput, OSError) as error:
            folder = None
            if chosen := setting or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
                reason = getattr(error, "strerror", None) or error
                raise BadInput(
                    f"--compile_cache={chosen}: {reason}; give a folder that can be written, or off"
                ) from error
    if folder is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_include_metadata_in_key", by_names)
    # Keep even the quickest programs: initialising compiles many small ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(folder)


def cache_folder(setting: str = "") -> pathlib.Path:
    """Return the folder of `use_compile_cache`; raise BadInput if there is no home folder."""
    chosen = setting or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return (user_path(chosen) if chosen else user_cache("xla")).resolve()


class CacheWatch:
    """Count the cache hits and misses of this thread's compilations inside a `with`."""

    def __init__(self):
        self.hits = self.misses = 0
        self._thread = threading.get_ident()

    @property
    def outcome(self) -> str:
        """Return `miss` if any program was compiled, `hit` if all were cached, `off` without."""
        # Without a cache JAX reports neither hits nor misses.
        return "miss" if self.misses else "hit" if self.hits else "off"

    def _listen(self, event: str, **_: object) -> None:
        if threading.get_ident() == self._thread:
            self.hits += event == _HIT
            self.misses += event == _MISS

    def __enter__(self) -> "CacheWatch":
        jax.monitoring.register_event_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_listener(self._listen)


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Compile inside the `with` without the cache: nothing is looked up or kept."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it reads the setting only once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()

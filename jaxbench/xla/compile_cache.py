"""The persistent compilation cache: where it is, and whether a compile came from it.

JAX keeps compiled programs in a folder and finds them by program, compiler, flags and devices. The
folder is the user's own: a program in it is run as it is.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import jax

from jaxbench.errors import BadInput

_HIT, _MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


def use_compile_cache(setting: str = "", *, by_names: bool = False) -> str | None:
    """Turns the cache on, before anything is compiled.

    Args:
      setting: a folder; `off`; or empty for $JAX_COMPILATION_CACHE_DIR, else the user's
        `~/.cache/jaxbench/xla`.
      by_names: programs that differ only in the names of their parts are two programs, for a
        profile that is to show this code's names and not those of the code that filled the cache.

    Returns:
      The folder, None where it is off: asked for, or the default cannot be written.

    Raises:
      BadInput: the folder that was asked for cannot be written.
    """
    if setting == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = setting or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = pathlib.Path(given or f"{home}/jaxbench/xla").expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("cannot be written")
    except OSError as error:
        if given:
            raise BadInput(
                f"--compile_cache={given}: {error.strerror or error}; give a folder that can be "
                "written, or off"
            ) from error
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_include_metadata_in_key", by_names)
    # Even the quickest: initialising is many small programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(folder)


class CacheWatch:
    """Counts what the cache had and what it lacked while it is watched."""

    def __init__(self):
        self.hits = self.misses = 0

    @property
    def outcome(self) -> str:
        """`miss` where anything had to be compiled, `hit` where nothing had, `off` without cache.

        Without a cache nothing is counted.
        """
        if self.misses:
            return "miss"
        return "hit" if self.hits else "off"

    def _listen(self, event: str, **_: object) -> None:
        self.hits += event == _HIT
        self.misses += event == _MISS


@contextlib.contextmanager
def watch_cache() -> Iterator[CacheWatch]:
    """Counts hits and misses of what is compiled inside the `with`."""
    watch = CacheWatch()
    jax.monitoring.register_event_listener(watch._listen)
    try:
        yield watch
    finally:
        jax.monitoring.unregister_event_listener(watch._listen)


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Compiles inside the `with` are neither looked up nor kept."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it looks at the setting only once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()

"""The persistent compilation cache: its folder, and whether a compilation was a hit.

JAX keeps compiled programs in a folder, keyed by program, compiler, flags and devices. It runs them
as they are, so the folder must belong to the user.
"""

import collections
import contextlib
import functools
import os
import pathlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxbench.errors import BadInput
from jaxbench.paths import user_cache, user_path
from jaxbench.terminal import warn

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
# Keep even the quickest programs: initialising compiles many small ones.
_KEEP = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
_HIT, _MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


def use_compile_cache(setting: str = "", *, by_names: bool = False) -> None:
    """Turn the cache on, before anything is compiled; off if no folder can be written.

    Args:
      setting: a folder; `off`; or empty for $JAX_COMPILATION_CACHE_DIR, which may be a bucket too,
        else the user's `~/.cache/jaxbench/xla`.
      by_names: whether the names of a program's parts belong to its key: a profile then shows this
        code's names, not those of the code that filled the cache.

    Raises:
      BadInput: the folder of the setting or of the variable cannot be written.
    """
    folder: str | pathlib.Path | None = None
    if not setting and (bucket := cache_bucket()):
        folder = bucket  # JAX reads and writes it, and warns if it cannot
    elif setting != "off":
        try:
            folder = cache_folder(setting)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError("cannot be written")
        except (BadInput, OSError) as error:
            folder = None
            if chosen := setting or os.environ.get(_VARIABLE):
                name, reason = "--compile_cache" if setting else _VARIABLE, error
                if not isinstance(error, BadInput):
                    reason = f"{chosen}: {error.strerror or error}"
                raise BadInput(
                    f"{name}={reason}; --compile_cache must name a folder that can be written, or "
                    "be off"
                ) from error
    if folder is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    _say_failure_once(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_include_metadata_in_key", by_names)
    for name, value in _KEEP.items():
        jax.config.update(name, value)


def cache_bucket() -> str | None:
    """Return the bucket that $JAX_COMPILATION_CACHE_DIR names, None if it names none."""
    address = os.environ.get(_VARIABLE, "")
    return address if re.match("(gs|s3|az)://", address) else None


def cache_folder(setting: str = "") -> pathlib.Path:
    """Return the folder of `use_compile_cache`; raise BadInput if there is no home folder."""
    chosen = setting or os.environ.get(_VARIABLE)
    return (user_path(chosen) if chosen else user_cache("xla")).resolve()


@functools.cache
def _say_failure_once(folder: str | pathlib.Path) -> None:
    """Print one line in place of JAX's warnings of each program that it cannot keep or read.

    A file that is cut off, as by a quota, goes: JAX would never replace it.
    """
    otherwise, said = warnings.showwarning, False

    def show(message: Warning | str, *args: Any, **keywords: Any) -> None:
        nonlocal said
        text = str(message)
        match = re.match(r"Error \w+ persistent compilation cache entry for '(\w+)': (.+)", text)
        if match is None:
            otherwise(message, *args, **keywords)
            return
        for entry in pathlib.Path(folder).glob(f"{match[1]}-*-cache"):  # none of a bucket
            with contextlib.suppress(OSError):
                entry.unlink()
        if not said:
            warn(f"jaxbench: {folder}: {match[2]}: programs that are not kept are compiled again")
        said = True

    warnings.showwarning = show


@contextlib.contextmanager
def watch_cache() -> Iterator[Callable[[], str]]:
    """Watch this thread's compilations inside the `with`; yield what returns the outcome.

    It is `miss` if any program was compiled, `hit` if all were cached, `off` without a cache.
    """
    thread, counts = threading.get_ident(), collections.Counter()

    def listen(event: str, **_: object) -> None:
        counts[event] += threading.get_ident() == thread

    jax.monitoring.register_event_listener(listen)
    try:
        # Without a cache JAX reports neither hits nor misses.
        yield lambda: "miss" if counts[_MISS] else "hit" if counts[_HIT] else "off"
    finally:
        jax.monitoring.unregister_event_listener(listen)


def without_cache() -> contextlib.AbstractContextManager[None]:
    """Compile inside the `with` without the cache: nothing is looked up or kept."""
    return _settings(jax_enable_compilation_cache=False)


def use_cache_of(folder: str) -> contextlib.AbstractContextManager[None]:
    """Compile inside the `with` with the cache of a folder, which keeps all."""
    return _settings(jax_enable_compilation_cache=True, jax_compilation_cache_dir=folder, **_KEEP)


@contextlib.contextmanager
def _settings(**settings: Any) -> Iterator[None]:
    from jax.experimental.compilation_cache import compilation_cache

    before = {name: getattr(jax.config, name) for name in settings}

    def update(settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # it reads them only once

    update(settings)
    try:
        yield
    finally:
        update(before)

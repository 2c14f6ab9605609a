"""Triton text -> a compiled kernel, with everything that decides the result given explicitly.

In: the source, its signature, which parameters are multiples of 16, and the options. Out: what can be
launched on this GPU, run in Triton's interpreter (TRITON_INTERPRET=1), or only looked at (offline build).

Triton itself would specialise on values (1, multiples of 16, 2**31): here nothing is specialised that is
not part of our own key.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilewright.runtime import cache
from tilewright.runtime.counters import counters
from tilewright.support.errors import error


@functools.cache
def triton() -> ModuleType:
    """The Triton package, or an error that says what to install."""
    try:
        import triton as found
        import triton.compiler
    except ImportError as why:
        raise error("no-triton", got=str(why)) from why
    return found


def interpreted() -> bool:
    """Whether Triton's own interpreter is in force (TRITON_INTERPRET=1)."""
    return bool(triton().knobs.runtime.interpret)


@functools.cache
def load(source: str, name: str) -> Any:
    """The function of a source text: a module made from a file in the cache (Triton reads source files)."""
    path = cache.entry(cache.key_of(source), "py")
    if not path.exists():
        cache.store(path, lambda made: _write(made, source))
    spec = importlib.util.spec_from_file_location(f"tilewright_kernel_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@functools.cache
def device_target(index: int) -> Any:
    """The compilation target of a CUDA device."""
    from triton.backends.compiler import GPUTarget

    major, minor = torch.cuda.get_device_capability(index)
    return GPUTarget("cuda", major * 10 + minor, 32)


def offline_target(capability: int = 90) -> Any:
    from triton.backends.compiler import GPUTarget

    triton()
    return GPUTarget("cuda", capability, 32)


def compile_for(
    target: Any,
    source: str,
    name: str,
    signature: Sequence[tuple[str, str]],
    aligned: Sequence[int],
    options: dict[str, object],
) -> Any:
    """Triton's CompiledKernel; no GPU is needed for this."""
    from triton.compiler import ASTSource

    fn = load(source, name)
    attrs = {(n,): [["tt.divisibility", 16]] for n in aligned}
    counters.triton_builds += 1
    made = ASTSource(fn=fn, signature=dict(signature), constexprs={}, attrs=attrs)
    return triton().compile(made, target=target, options=_known(options))


def _known(options: dict[str, object]) -> dict[str, object]:
    """Options that this Triton has (names come and go between versions)."""
    from triton.backends.nvidia.compiler import CUDAOptions

    fields = set(CUDAOptions.__dataclass_fields__)
    return {k: v for k, v in options.items() if k in fields}

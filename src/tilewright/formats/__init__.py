"""Storage formats: levels, layouts, structures, sparse tensors, conversion, structure cache."""

from tilewright.formats import pytree as _pytree
from tilewright.formats.cache import CACHE, StructureCache
from tilewright.formats.graph import graph
from tilewright.formats.layout import FORMATS, Layout, layout
from tilewright.formats.level import Level
from tilewright.formats.mask import block_mask
from tilewright.formats.ragged import Ragged, ragged
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor

__all__ = [
    "CACHE",
    "FORMATS",
    "Layout",
    "Level",
    "Ragged",
    "SparseTensor",
    "Structure",
    "StructureCache",
    "block_mask",
    "graph",
    "layout",
    "ragged",
]
del _pytree

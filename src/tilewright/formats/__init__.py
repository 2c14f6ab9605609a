"""Storage formats: levels, layouts, structures, sparse tensors, conversion, structure cache."""

from tilewright.formats import pytree as _pytree
from tilewright.formats.bucket import buckets
from tilewright.formats.cache import CACHE, StructureCache
from tilewright.formats.gallery import gallery
from tilewright.formats.graph import edge_index, graph
from tilewright.formats.layout import FORMATS, Layout, layout
from tilewright.formats.level import Level
from tilewright.formats.mask import block_mask
from tilewright.formats.ragged import Ragged, from_nested, ragged
from tilewright.formats.structure import Structure
from tilewright.formats.tensor import SparseTensor
from tilewright.formats.tree import Tree

__all__ = [
    "CACHE",
    "FORMATS",
    "Layout",
    "Level",
    "Ragged",
    "SparseTensor",
    "Structure",
    "StructureCache",
    "Tree",
    "block_mask",
    "buckets",
    "edge_index",
    "from_nested",
    "gallery",
    "graph",
    "layout",
    "ragged",
]
del _pytree

"""Entry points that live below the operators: their errors, too, end at the user's call.

In: `SparseTensor` and the functions that make one. Out: the same, behind `support.places.public`.

    SparseTensor.from_coo(rows, cols, None, (3, 3))     # an error of the user's own line
"""

from __future__ import annotations

from tilewright import formats
from tilewright.formats import SparseTensor
from tilewright.support.places import public

MAKERS = ("from_torch", "from_scipy", "from_dense", "from_coo", "from_coords", "from_arrays")
METHODS = (
    "with_values",
    "with_entries",
    "map",
    "to",
    "to_format",
    "to_torch",
    "to_scipy",
    "decompose",
)

for _name in MAKERS:
    setattr(SparseTensor, _name, staticmethod(public(getattr(SparseTensor, _name))))
for _name in METHODS:
    setattr(SparseTensor, _name, public(getattr(SparseTensor, _name)))

graph = public(formats.graph)
block_mask = public(formats.block_mask)
ragged = public(formats.ragged)

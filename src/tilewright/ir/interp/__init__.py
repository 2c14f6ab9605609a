"""Reference interpreters, one for each stage: the judges of every pass. NumPy only, slow on purpose.

In: a program, arrays by buffer name, sizes and scalars by name. Out: outputs by buffer name.

    run_coord(program, arrays, sizes)["y"]   # what the program means
"""

from tilewright.ir.interp.common import evaluate, to_bf16
from tilewright.ir.interp.coord import run_coord
from tilewright.ir.interp.flat import run_flat
from tilewright.ir.interp.loops import run_loops
from tilewright.ir.interp.tile import run_tile

__all__ = ["evaluate", "run_coord", "run_flat", "run_loops", "run_tile", "to_bf16"]

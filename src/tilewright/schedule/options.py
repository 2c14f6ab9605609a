"""What a schedule asks of its target: one typed record for each back end, and the tile setting.

A setting is a small dictionary of integers (so that it can be stored, compared and passed through torch):

    rows, unroll, long, chunk    rows in a unit, unrolled entries, longest short row, entries of a piece
    alike                        1: rows that share columns are neighbours in a work list; in C, in their turns
    width, outer                 feature tile; 1: feature tiles outermost in the grid
    bm, bn, bk, group            tile of a product, and the row tiles that share column tiles
    pieces, cores                at most so many pieces of a sum in the last wave of a product's tiles over so many
                                 multiprocessors; 1: programs take tile after tile
    tail                         a last tile of so many rows, or of fewer, is no higher, and shared where it would begin
                                 another wave
    edges                        entries in a tile
    stream                       1: entries leave the caches early, so that x may stay
    blocks                       blocks of a row in one step of a product
    warps, stages, registers     of the Triton program; registers: at most so many a thread
    width, prefetch, grain       of a C loop: the lanes, kilobytes ahead and iterations of `COptions`
"""

from __future__ import annotations

from dataclasses import dataclass

Setting = dict[str, int]
WARPS = 4  # of a program that does not say
GRAIN = 1024  # likewise, iterations of a C loop
CORES = 132  # likewise, multiprocessors: those of an H200


@dataclass(frozen=True)
class TritonOptions:
    """Every compile option of Triton that matters here, set explicitly."""

    warps: int = WARPS
    stages: int = 3
    precision: str = "ieee"
    fuse: bool = True
    registers: int | None = None

    def as_dict(self) -> dict[str, object]:
        return {
            "num_warps": self.warps,
            "num_stages": self.stages,
            "num_ctas": 1,
            "maxnreg": self.registers,
            "enable_fp_fusion": self.fuse,
            "debug": False,
            "sanitize_overflow": False,
        }


def gather_registers(setting: Setting, half: bool) -> int | None:
    """The bound on registers of a work-list kernel (measured).

    Without a bound the assembler fits as many warps as it can and gives up gathers in flight for them.
    """
    if "registers" in setting:
        return setting["registers"]
    warps, unroll = setting.get("warps", 4), setting.get("unroll", 1)
    held = setting["rows"] * setting["width"] // (32 * warps) * unroll
    if half:
        return 64 if held < 128 else 96  # so many do not fit 64
    if unroll > 4 or held < 16 or (warps == 1 and held < 64):
        return None
    if held == 16 and setting.get("whole"):
        return 40
    return 96 if held >= 64 else 64


@dataclass(frozen=True)
class COptions:
    """grain: iterations a thread takes at once, at most; prefetch: kilobytes of gathered rows that are asked for ahead
    (0: none); width: lanes of the feature loop; fuse: products and sums may become one instruction; visit: the index
    array of rows that come in the order of a list; vector: bytes of the machine's vectors."""

    grain: int = GRAIN
    prefetch: int = 16
    width: int = 128
    fuse: bool = True
    visit: str = ""
    vector: int = 64

    @staticmethod
    def of(setting: Setting) -> COptions:
        """The options of a setting; those of an empty one are the usual ones."""
        if not setting:
            return COptions()
        return COptions(setting["grain"], setting.get("prefetch", 0), setting["width"])

    @property
    def setting(self) -> Setting:
        return {"width": self.width, "prefetch": self.prefetch, "grain": self.grain}

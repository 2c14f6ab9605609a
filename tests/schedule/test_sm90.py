"""Schedules with the newer primitives build for sm_90, without a GPU; in a process where Triton compiles.

python tests/schedule/test_sm90.py       # prints one line of JSON: what each kernel's PTX holds
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from schedule.draws import case_of

from tilewright import driver
from tilewright.runtime import build_triton
from tilewright.schedule.record import parse_steps

# name: program, steps, a pattern of an instruction that must be there
BUILT = {
    "atomic": ("rows-linear", "split_reduction(d, atomic); kind(r, grid); lane(o, 16)", "(atom|red).*global"),
    "share": ("rows-linear", "kind(r, grid); kind(o, grid); share(r, o, d, 132, 4, 8)", "atom.*global"),
    "persistent": ("spmm-sum", "lane(f, 16); work_list(i, p_j, 4, 1); persistent(u, 132)", "bra"),
}  # fmt: skip


def build() -> dict[str, bool]:
    made = {}
    for name, (program, said, wanted) in BUILT.items():
        steps = parse_steps(said.replace("; ", "\n"))
        target = build_triton.offline_target()
        kernel = driver.compile_triton(case_of(program)[1], {}, {}, target=target, schedule=steps)
        made[name] = re.search(wanted, kernel.compiled.asm["ptx"]) is not None
    return made


def test_builds() -> None:
    space = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    space["PYTHONPATH"] = os.pathsep.join(sys.path)
    ran = subprocess.run([sys.executable, __file__], env=space, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == dict.fromkeys(BUILT, True)


if __name__ == "__main__":
    print(json.dumps(build()))

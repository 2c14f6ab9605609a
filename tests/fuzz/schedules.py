"""make fuzz ARGS=--schedules: random schedules on real programs, judged on every executor.

python -m fuzz.run --schedules --count 2000 --seed 0
python -m fuzz.run --schedules --seed 0 --only 17          # one of them, with its steps
"""

from __future__ import annotations

import random
import time
from collections import Counter

from schedule.draws import case_of, draw
from schedule.judge import INTERPRETED, PLACES, judged


def main(count: int, seed: int, share: float, only: str | None) -> int:
    began = time.perf_counter()
    taken: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    wrong = 0
    for number in [int(only)] if only else range(count):
        rng = random.Random(f"{seed}.{number}")
        made = draw(rng)
        if only:
            print(
                made.name,
                *made.steps,
                *(f"# {s} refused: {why}" for s, why in made.refused),
                sep="\n",
            )
        case, p = case_of(made.name)
        taken.update(s.name for s in made.steps)
        try:
            ran.update(judged(case, made.steps, PLACES if rng.random() < share else INTERPRETED, p))
        except Exception as why:
            wrong += 1
            print(f"wrong: {made.name}\n  " + "\n  ".join(map(str, made.steps)))
            print(f"  {type(why).__name__}: {str(why).strip().splitlines()[0]}")
            print(f'  make fuzz ARGS="--schedules --seed {seed} --only {number}"')
    print(f"seed {seed}: {count} schedules in {time.perf_counter() - began:.0f} s, {wrong} wrong")
    print("  taken: " + ", ".join(f"{n} {k}" for k, n in taken.most_common()))
    print("  run: " + ", ".join(f"{n} {k}" for k, n in ran.most_common()))
    return int(wrong > 0)

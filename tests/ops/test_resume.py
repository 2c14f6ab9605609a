"""Compilation resumed from the dumped text of a stage, as it was written and edited: the result shows the edit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ops.matrices import close, matrix, randn
from ops.places import INTERPRETER
from torch import Tensor

import tilewright as tw
from tilewright import cli, driver
from tilewright.ops.backend import backend
from tilewright.ops.entry import entry
from tilewright.runtime.kernel import Kernel
from tilewright.schedule.record import parse_steps

WIDTH = 21
STAGES = {
    "c": ["01_coord", "02_loops", "03_flat", "04_scheduled"],
    "triton": ["01_coord", "02_loops", "03_flat", "04_scheduled", "05_tile"],
}
PLACES = [pytest.param("c"), pytest.param("triton", marks=INTERPRETER)]


def operands() -> tuple[tw.SparseTensor, Tensor]:
    return tw.SparseTensor.from_dense(matrix(9, 12, 0.4)), randn(12, WIDTH)


@pytest.fixture
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """dumped(back end): the folder of a product's stages."""

    def go(where: str) -> Path:
        entry.cache_clear()
        with monkeypatch.context() as m, backend(where):
            m.setenv("TILEWRIGHT_DUMP", str(tmp_path))
            tw.spmm(*operands())
        (folder,) = tmp_path.iterdir()
        return folder

    return go


def launched(kernel: Kernel) -> Tensor:
    """The product by a kernel, its parameters found by their names."""
    a, x = operands()
    y = torch.full((9, WIDTH), torch.nan)
    csr = a.structure.as_csr()
    given = {"a_indptr": csr.indptr, "a_indices": csr.indices, "a": a.values, "x": x, "y": y}
    sizes = {"n_i": 9, "n_j": 12, "a_nnz": a.nnz, "n_f": WIDTH}
    tensors = [given[b.name] for b in kernel.buffers]
    kernel.call(tensors, [t.data_ptr() for t in tensors], [sizes[n] for n in kernel.sizes], [])
    return y


def edit(path: Path, *changes: tuple[str, str]) -> Path:
    said = path.read_text()
    for old, new in changes:
        assert old in said, said
        said = said.replace(old, new)
    path.write_text(said)
    return path


def product() -> Tensor:
    a, x = operands()
    return a.to_dense() @ x


@pytest.mark.parametrize("where", PLACES)
def test_every_stage(where: str, dumped: Callable[[str], Path]) -> None:
    """From each file on, the stages that follow are those of the first compilation."""
    folder = dumped(where)
    files = sorted(folder.glob("0*"))
    for n, stage in enumerate(STAGES[where]):
        kernel = driver.resume(folder / f"{stage}.py", where, {"n_f": WIDTH} if n < 2 else None)
        close(launched(kernel), product())
        assert list(kernel.stages) == [f.stem[3:] for f in files[n:]]
        if where == "c" or n > 2:
            assert kernel.text + "\n" == files[-1].read_text()


def test_a_text_is_as_good_as_a_file(dumped: Callable[[str], Path]) -> None:
    said = (dumped("c") / "03_flat.py").read_text()
    close(launched(driver.resume(said)), product())


@pytest.mark.parametrize("where", PLACES)
def test_another_reduction(where: str, dumped: Callable[[str], Path]) -> None:
    path = edit(dumped(where) / "01_coord.py", ("sum(j, ", "max(j, 2.0 * "))
    a, x = operands()
    close(launched(driver.resume(path, where)), 2 * tw.spmm(a, x, reduce="max"))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("stage", ["02_loops", "03_flat", "04_scheduled"])
def test_another_term(stage: str, where: str, dumped: Callable[[str], Path]) -> None:
    path = edit(dumped(where) / f"{stage}.py", ("acc, a[p_j]", "acc, 3.0 * a[p_j]"))
    close(launched(driver.resume(path, where)), 3 * product())


def test_another_kind_of_loop(dumped: Callable[[str], Path]) -> None:
    path = dumped("c") / "04_scheduled.py"
    assert "omp parallel" in driver.resume(path).text
    edit(path, ("for i in grid(n_i)", "for i in serial(n_i)"))
    with pytest.raises(tw.TilewrightError, match="leave `balance` out"):
        driver.resume(path)
    edit(path, (", balance=a_indptr)", ")"))
    kernel = driver.resume(path)
    assert "omp parallel" not in kernel.text
    close(launched(kernel), product())


@INTERPRETER
def test_another_tile(dumped: Callable[[str], Path]) -> None:
    path = edit(dumped("triton") / "05_tile.py", ("acc + a_v", "acc + 0.5 * a_v"))
    close(launched(driver.resume(path)), 0.5 * product())


@INTERPRETER
def test_another_setting(dumped: Callable[[str], Path]) -> None:
    kernel = driver.resume(dumped("triton") / "03_flat.py", "triton", setting={"rows": 2})
    assert "r: 2" in kernel.stages["tile"]
    close(launched(kernel), product())


@pytest.mark.parametrize("where", PLACES)
def test_its_own_schedule(where: str, dumped: Callable[[str], Path]) -> None:
    """The record that was dumped, replayed on stage III: the same scheduled program."""
    folder = dumped(where)
    steps = parse_steps((folder / "schedule.py").read_text())
    kernel = driver.resume(folder / "03_flat.py", where, schedule=steps)
    assert kernel.schedule == steps
    if where == "c":
        assert kernel.stages["scheduled"] + "\n" == (folder / "04_scheduled.py").read_text()
    close(launched(kernel), product())


@pytest.mark.parametrize("where", PLACES)
def test_another_schedule(where: str, dumped: Callable[[str], Path]) -> None:
    steps = parse_steps("split(i, 4)\nkind(i_o, grid)\nsplit(f, 4)\nkind(f_i, lane)")
    kernel = driver.resume(dumped(where) / "03_flat.py", where, schedule=steps)
    assert "for f_i in lane(4, i32)" in kernel.stages["scheduled"] and kernel.schedule == steps
    close(launched(kernel), product())


# --- the command ------------------------------------------------------------------------------------


def test_command(dumped: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = dumped("c") / "02_loops.py"
    assert cli.main(["resume", str(path)]) == 0
    said = capsys.readouterr().out
    assert "stage III, scheduled" in said and "void spmm_sum(" in said
    assert cli.main(["resume", str(path), "--backend", "triton", "--set", "rows=4"]) == 0
    said = capsys.readouterr().out
    assert "dims={r: 4" in said and "@triton.jit" in said


def test_command_with_a_schedule(
    dumped: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped("c") / "03_flat.py"
    steps = path.with_name("steps.py")
    steps.write_text("kind(i, grid)\nkind(f, lane)\n")
    assert cli.main(["resume", str(path), "--schedule", str(steps)]) == 0
    said = capsys.readouterr().out
    assert "for i in grid(n_i):" in said and "prefetch" not in said
    steps.write_text("kind(i, threads)\n")
    assert cli.main(["resume", str(path), "--schedule", str(steps)]) == 2
    assert "grid, lane, serial or unroll" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [(["nowhere.py"], "a file of the folder"), (["{file}", "--set", "rows"], "NAME=N")],
)
def test_command_refuses(
    words: list[str], why: str, dumped: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(dumped("c") / "03_flat.py")
    assert cli.main(["resume", *(w.format(file=file) for w in words)]) == 2
    assert why in capsys.readouterr().err


def test_command_tells_the_line(
    dumped: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = edit(dumped("c") / "04_scheduled.py", ("for i in grid", "for i in threads"))
    assert cli.main(["resume", str(path)]) == 2
    said = capsys.readouterr().err
    assert "04_scheduled.py, line" in said and "for i in threads(n_i):" in said
    assert "one of grid, lane, serial, unroll" in said


@pytest.mark.parametrize(
    "said",
    [
        "resume FILE",
        "resume FILE --schedule FILE",
        "demo --tiny --out FILE",
        "profile --results FILE --tiles FILE",
        "bench spmm --quick --widths many",
        "bench spmm --quick --threads -1",
        "tune run --data tiny --width -1",
        "bench rows --device cpu",
        "bench rows --device cpu",
        "bench spmm --quick --json FILE/spmm.json",
        "profile --json FILE/tiles.json",
    ],
)
def test_wrong_options_are_told(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe\x00")
    try:
        code = cli.main(said.replace("FILE", str(file)).split())
    except SystemExit as why:
        code = why.code
    assert code == 2
    assert "tilewright" in capsys.readouterr().err

"""tilewright tune: run, list, show, clear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright import cli

pytestmark = pytest.mark.usefixtures("own_plans")


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """40 x 50 with 3 entries in each row."""
    indices = (np.arange(120) * 7 % 50).astype(np.int64)
    path = tmp_path / "small.npz"
    np.savez(
        path,
        indptr=np.arange(0, 121, 3),
        indices=np.sort(indices.reshape(40, 3)).ravel(),
        shape=[40, 50],
    )
    return str(path)


def run(*words: str) -> int:
    return cli.main(["tune", *words])


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_a_graph_is_tuned_listed_shown_and_forgotten(
    op: str, graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--data", graph, "--op", op, "--width", "8", "--budget", "0.1", "--quiet"]
    assert run(*words, "--device", "cpu") == 0
    said = capsys.readouterr().out
    number = said.split()[1].rstrip(":")
    assert said.startswith("plan ") and f"{op}_" in said and "tried" in said
    assert run("list") == 0
    assert number in capsys.readouterr().out
    assert run("show", number[:6]) == 0
    assert capsys.readouterr().out == said
    assert run("clear") == 0
    assert capsys.readouterr().out.startswith("1 plans forgotten")
    assert run("list") == 0
    assert "no plans in" in capsys.readouterr().out


def test_an_unknown_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "nothing") == 2
    assert "tilewright tune list" in capsys.readouterr().err


def test_an_unknown_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--data", "nowhere.npz") == 2
    assert "nowhere.npz" in capsys.readouterr().err

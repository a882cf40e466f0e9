"""The progress of jobs, by tqdm and without it."""

import sys
import types

import crossrank
import pytest

numpy = pytest.importorskip("numpy")


def shards(folder):
    folder.mkdir()
    for rank in range(2):
        weight = numpy.full((2, 4), rank, numpy.float32)
        crossrank.save(folder / f"rank{rank}.safetensors", {"model.layers.0.mlp.up_proj.weight": weight})
    return folder


class Bar:
    """What a job asks of tqdm."""

    made: list["Bar"] = []  # noqa: RUF012 (a test empties it)

    def __init__(self, total, desc, unit, unit_scale):
        self.n, self.total, self.desc, self.is_open = 0, total, desc, True
        assert unit == "B" and unit_scale
        assert not any(bar.is_open for bar in Bar.made)
        Bar.made.append(self)

    def update(self, more):
        assert self.is_open
        self.n += more

    def close(self):
        self.is_open = False


@pytest.fixture
def tqdm(monkeypatch):
    Bar.made.clear()
    auto = types.ModuleType("tqdm.auto")
    auto.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    return Bar


def test_jobs_show_bars_of_tqdm(tmp_path, tqdm):
    crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", progress=True)
    assert [(bar.n, bar.total) for bar in tqdm.made if bar.desc == "writing"] == [(192, 192)]
    assert not any(bar.is_open for bar in tqdm.made)


def test_the_comparison_of_replicas_reaches_its_end_where_ranks_hold_different_pieces(tmp_path):
    last = {}
    report = lambda done, total, stage: last.update({stage: (done, total)})  # noqa: E731
    crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", progress=report)
    done, total = last["comparing replicas"]
    assert done == total > 0


def test_a_failed_job_closes_its_bar(tmp_path, tqdm, monkeypatch):
    monkeypatch.setattr(Bar, "update", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", progress=True)
    assert tqdm.made and not any(bar.is_open for bar in tqdm.made)


def test_jobs_print_lines_without_tqdm(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    crossrank.consolidate(shards(tmp_path / "shards"), tmp_path / "model", progress=True)
    assert "writing: 100 % of 0.00 GB" in capfd.readouterr().err


def test_lines_come_at_each_tenth(capfd):
    from crossrank.progress import _Lines

    lines = _Lines()
    for done in range(0, 1001):
        lines(done, 1000, "writing")
    lines(0, 0, "comparing")
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) == 12 and printed[3].startswith("writing: 30 %") and printed[-1].startswith("comparing: 100 %")

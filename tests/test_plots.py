"""Pictures are written whole, without a display."""


import numpy as np
import pytest
from matplotlib.image import imread

import minifpt
from minifpt.experiments import tables
from minifpt.files import plots
from minifpt.files.runs import COLUMNS

pytestmark = pytest.mark.usefixtures("drawn")


def history(n=4, tests=True, shift=0.0):
    return minifpt.History(
        dict(zip(COLUMNS, (100 * (i + 1), 1.0 / (i + 1), 0.5, 0.9 / (i + 1) if tests else None,
                           0.1 * i + shift if tests else None, 1.0), strict=True))
        for i in range(n))


def png_size(path):
    """(width, height) of a PNG that can be read."""
    return imread(path).shape[1::-1]


@pytest.mark.parametrize("run", [history(), history(1, tests=False)],
                         ids=["four rows", "one row without a test"])
def test_curves_are_written_as_a_whole_picture(tmp_path, run):
    plots.curves(run, tmp_path / "new" / "c.png", "bit-xor")
    width, height = png_size(tmp_path / "new" / "c.png")
    assert width == 2 * 4.2 * 120 and height == 3.2 * 120
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["c.png"]


def test_curves_show_the_numbers(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots, "save", lambda fig, path: figures.append(fig))
    plots.curves(history(3), tmp_path / "c.png", "a")
    loss, accuracy = figures[0].axes
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [1, 1 / 2, 1 / 3])
    np.testing.assert_allclose(loss.lines[1].get_ydata(), [0.9, 0.45, 0.3])
    np.testing.assert_allclose(accuracy.lines[1].get_ydata(), [0, 10, 20], atol=1e-12)
    assert list(accuracy.lines[0].get_xdata()) == [100, 200, 300]
    assert loss.get_xlabel() == "step" and accuracy.get_ylabel() == "accuracy (%)"


def test_band_of_runs_of_different_lengths_takes_the_steps_of_both():
    fig, (ax,) = plots.figure()
    plots.band(ax, [history(2), history(3, shift=0.2)], "test_accuracy", "k", "two")
    assert list(ax.lines[0].get_xdata()) == [100, 200]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [10, 20])
    low, high = ax.collections[0].get_datalim(ax.transData).intervaly
    assert low == pytest.approx(0, abs=1e-9) and high == pytest.approx(30)


@pytest.mark.parametrize("lines, below", [(4, 0), (5, 1)])
def test_a_legend_of_many_lines_stands_below_the_axes(lines, below):
    fig, axes = plots.figure(2)
    width, height = fig.get_size_inches()
    for ax in axes:
        for i in range(lines):
            ax.plot([0, 1], label=str(i))
    plots.legend(fig, axes)
    assert len(fig.legends) == below and (fig.get_figheight() > height) == bool(below)
    assert fig.get_figwidth() == width                    # the text remains as large
    texts = [t.get_text() for t in (fig if below else axes[0].get_legend()).findobj(
        lambda x: x.__class__.__name__ == "Text") if t.get_text().isdecimal()]
    assert {*map(str, range(lines))} <= {*texts}


def seen_without_green(color):
    """An sRGB colour as a deuteranope sees it, after Machado, Oliveira and Fernandes (2009)."""
    rgb = np.array([int(color[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                       [-0.011820, 0.042940, 0.968881]])
    light = np.clip(matrix @ linear, 0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


ARMS = ("language", "statistics", "random (0.02)", "random", "random (spread 0.55)", "bits",
        "images")


def test_arms_are_distinct_for_a_deuteranope_by_colour_and_by_dashes():
    colors, dashes = plots.colors_of(ARMS), plots.dashes_of(ARMS)
    assert len({str(pattern) for pattern in dashes.values()}) == len(ARMS)
    for i, one in enumerate(ARMS):
        for other in ARMS[:i]:
            apart = np.abs(seen_without_green(colors[one]) - seen_without_green(colors[other]))
            assert apart.max() > 30, (one, other)


def test_text_is_at_least_nine_pixels_where_the_picture_is_830_wide(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save", lambda fig, path, kind=None: figures.append(fig))
    results = {task: {arm: [history(3), history(3, shift=0.1)] for arm in ARMS}
               for task in ("bit-xor-long", "bit-memory", "typos")}
    tables.picture(tables.Grid(results, {}, {}, [], {"bit-xor-long": 0.5}), tmp_path / "x.png")
    fig, = figures
    scale = 830 / (fig.get_figwidth() * 120) * 120 / 72
    texts = [t for ax in fig.axes
             for t in [*ax.texts, ax.title, ax.xaxis.label, *ax.get_xticklabels()]]
    assert min(scale * t.get_fontsize() for t in texts) >= 9
    assert {t.get_text() for t in fig.axes[0].texts} == {"chance"}
    assert {t.get_text() for t in fig.legends[0].get_texts()} == {*ARMS}

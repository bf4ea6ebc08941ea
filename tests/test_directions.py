"""The study of directions: what its changes keep, and the rule that chooses a learning rate."""

import numpy as np
import pytest

import minifpt
from studies import directions
from studies.directions import Arm


@pytest.fixture
def trunk():
    return minifpt.trunks.get("minigpt-tiny")


def forms_of(trunk):
    return [directions.form_of(block.attn, head)
            for block in trunk.h for head in range(block.attn.n_head)]


def preferences(attn, x):
    """Return what attention's softmax sees of the scores of tokens x, (heads, queries, keys): each
    query's scores less their mean."""
    size = attn.c_attn.weight.data.shape[1] // 3
    w, b = attn.c_attn.weight.data[:, :2 * size], attn.c_attn.bias.data[:2 * size]
    q, k = np.split((x @ w + b).reshape(len(x), -1, size // attn.n_head), 2, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k)
    return scores - scores.mean(axis=2, keepdims=True)


@pytest.mark.parametrize("spectrum", ["flat", "half flat", "tau 2"])
@pytest.mark.parametrize("size", ["norm", "largest"])
def test_another_spectrum_keeps_directions_and_size(trunk, spectrum, size):
    before = forms_of(trunk)
    directions.change(trunk, Arm("minigpt-tiny", 20, spectrum, size), seed=0)
    for old, block, head in zip(before, np.repeat(trunk.h, trunk.h[0].attn.n_head),
                                [*range(trunk.h[0].attn.n_head)] * len(trunk.h), strict=True):
        columns = directions.columns_of(block.attn, head)
        q, k = (block.attn.c_attn.weight.data[:, c].astype(float) for c in columns)
        new = old.left.T @ (q @ k.T) @ old.right          # diagonal: the directions are the same
        values = np.diag(new)
        assert np.abs(new - np.diag(values)).max() < 1e-5 * values.max()
        measure = {"norm": np.linalg.norm, "largest": np.max}[size]
        np.testing.assert_allclose(measure(values), measure(old.values), rtol=1e-5)


def test_the_own_spectrum_leaves_all_scores(trunk):
    x = np.random.default_rng(0).standard_normal((5, trunk.config.n_embd))
    before = [preferences(block.attn, x) for block in trunk.h]
    directions.change(trunk, Arm("minigpt-tiny"), seed=0)
    for block, scores in zip(trunk.h, before, strict=True):
        np.testing.assert_allclose(preferences(block.attn, x), scores, atol=1e-4)


def test_another_spectrum_keeps_what_the_biases_of_queries_add(trunk):
    rng = np.random.default_rng(0)
    for block in trunk.h:
        block.attn.c_attn.bias.data[...] = rng.standard_normal(block.attn.c_attn.bias.data.shape)
    before = forms_of(trunk)
    directions.change(trunk, Arm("minigpt-tiny", 20, "flat"), seed=0)
    for old, new in zip(before, forms_of(trunk), strict=True):
        np.testing.assert_allclose(new.preference, old.preference, atol=1e-4)


@pytest.mark.parametrize("trace", ["-0.5", "0", "0.5"])
def test_turned_keys_have_the_trace_and_the_spectrum(trunk, trace):
    before = forms_of(trunk)
    directions.change(trunk, Arm("minigpt-tiny", 20, "own", "norm", trace), seed=0)
    assert directions.measures(trunk)[3] == pytest.approx(float(trace), abs=1e-4)
    for old, new in zip(before, forms_of(trunk), strict=True):
        np.testing.assert_allclose(new.values, old.values, rtol=1e-3, atol=1e-5)


def row(lr, *accuracies, patch=20):
    curve = " ".join(f"{25 * (i + 1)}:{a:.4f}" for i, a in enumerate(accuracies))
    return {"lr": lr, "patch": str(patch), "curve": curve}


@pytest.mark.parametrize("rows, rate", [
    ([row("0.01", 0.8, 0.9, 0.96), row("0.03", 0.8, 0.95)], "0.03"),      # the level first
    ([row("0.01", 0.8, 0.95), row("0.03", 0.7, 0.97)], "0.03"),           # then the accuracy
    ([row("0.01", 0.8, 0.81, 0.9), row("0.03", 0.7, 0.85)], "0.03")])     # of the last common test
def test_a_seed_is_won_by_the_rate_that_is_first_and_then_by_the_most_accurate(rows, rate):
    assert directions.winner(rows) == rate


@pytest.mark.parametrize("winners, rate", [
    (["0.01", "0.01"], "0.01"), (["0.03", "0.01", "0.03"], "0.03"),
    (["0.003", "0.03", "0.01"], "0.01")])
def test_most_wins_choose_the_rate_or_the_middle_one(winners, rate):
    assert directions.choose_rate(winners) == rate


def test_levels_of_short_patches_are_shares_of_what_single_patches_tell():
    assert directions.level(95, 20) == pytest.approx(0.95)
    reach = directions.reach_of_patches(5)
    assert 0.90 < reach < 0.92 and directions.level(95, 5) == pytest.approx(0.75 + 0.8 * (
        reach - 0.75))
    assert directions.reach_of_patches(1) == pytest.approx(0.84375)       # a vote of five strings


def test_runs_that_are_there_are_not_repeated(tmp_path, monkeypatch):
    runs = []

    def run(arm, lr, seed, goal, most_steps):
        runs.append((lr, seed))
        curve = f"25:0.80 {50 if lr == 3e-2 else 75}:{goal}"
        return dict.fromkeys(directions.COLUMNS, "") | {
            name: str(value) for name, value in arm._asdict().items()} | {
            "lr": f"{lr:g}", "seed": str(seed), "curve": curve}
    monkeypatch.setattr(directions, "run", run)
    path = tmp_path / "directions-dose.csv"
    path.write_text(",".join(directions.COLUMNS) + "\n", encoding="utf-8")
    directions.run_arm(Arm("random:1x1x8"), path)
    assert len(runs) == 2 * 3 + 5                         # the third validation seed is not needed
    assert {lr for lr, seed in runs if seed in directions.SEEDS} == {3e-2}
    directions.run_arm(Arm("random:1x1x8"), path)
    assert len(runs) == 11

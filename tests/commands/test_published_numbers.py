"""Configs and sweeps fill the papers' rows, with the settings behind the printed numbers."""

import pytest
from published_checks import (
    EXPERIMENTS,
    SWEEPS,
    UNPRINTED,
    entries,
    experiment_problems,
    places,
    position_of,
    problems,
    row_problems,
    settings_of,
)

from brt.reporting.papers.published_tables import PAPERS, fits


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_config_has_the_settings_of_its_quoted_number(name):
    assert experiment_problems(name) == []


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_fills_the_rows_of_its_tables(sweep):
    filled = []
    for entry in entries(sweep):
        assert row_problems(entry, sweep) == [], entry.name
        own = [p.row for p in places(position_of(entry.settings)[1]) if p.name in SWEEPS[sweep]]
        assert own or not SWEEPS[sweep] or any(part in entry.name for part in UNPRINTED)
        filled += own
    tables = [table for paper in PAPERS for table in paper.tables if table.name in SWEEPS[sweep]]
    for table in tables:
        for row in table.rows:
            studied = "(151M)" in row.labels[0]  # rows of a study of the standard model
            if (
                row.where
                and not studied
                and not (sweep == "table_1_github" and "64k" in row.labels[0])
            ):
                assert row in filled, row.labels


@pytest.mark.parametrize("name", ["rmt_figure_3", "rmt_figure_4", "rmt_figure_8", "arpt_windows"])
def test_a_sweep_has_a_run_for_every_published_point(name):
    begins = {"arpt_windows": ("arpt_figure_4", "arpt_figure_5")}.get(name, (name,))
    positions = [position_of(entry.settings)[1] for entry in entries(name)]
    plots = [plot for paper in PAPERS for plot in paper.plots if plot.name.startswith(begins)]
    for plot in plots:
        for curve in plot.curves if plot.x != "flops" else ():
            measured = {getattr(p, plot.x) for p in positions if fits(p, curve.where)}
            assert set(curve.x) <= measured, (plot.name, curve.name)


def test_a_number_that_differs_is_named():
    settings = settings_of("pg19_rec_fixed_skip.gin") | {"rsqrt.multiplier": 0.5}
    assert "table_1: rsqrt.multiplier = 0.5 for 1.0" in problems(settings)
    assert problems(settings | {"BlockRecurrentTransformer.width": 512})

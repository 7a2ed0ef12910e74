"""The mesh of devices in several slices: the devices of its rows and columns, and training."""

import itertools
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from architectures import abstract
from devices import gpus, tpus
from gin_settings import bound
from jax.experimental import mesh_utils
from paths import ROOT
from tiny_run import build, ended, records, start_several, train_here, write_config

from brt.models.mesh_axes import AXES
from brt.training.over_time.mesh import divided
from brt.training.sharding import abstract_mesh, make_mesh, owned_rows, put_rows

DISTINCT_SLICES = """\
from jaxlib._jax import Device

Device.slice_index = property(lambda device: device.process_index)
"""
"""A `sitecustomize` with which each process of a run on CPUs is a slice."""


def slices_of(mesh):
    return np.vectorize(lambda device: device.slice_index)(mesh.devices)


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        *[((-1, 1), (2, 8, 1)), ((-1, 4), (2, 2, 4)), ((2, 8), (2, 1, 8)), ((2, -1), (2, 1, 8))],
        *[((2, -1, 2), (2, 4, 2)), ((8, 2, 1), (8, 2, 1)), ((-1, 1, 1), (16, 1, 1))],
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_model_and_fsdp_stay_in_a_node_and_data_crosses_nodes(asked, shape, order):
    mesh = make_mesh(asked, gpus(8, 8)[::order])
    assert mesh.devices.shape == shape and mesh.axis_names == ("data", "fsdp", "model")
    assert [device.id for device in mesh.devices.flat] == list(range(16))
    found = slices_of(mesh)
    assert (found == found[:, :1, :1]).all()  # parameters are divided inside of a node
    half = shape[0] // 2
    assert (found[:half] == 0).all() and (found[half:] == 1).all()


@pytest.mark.parametrize("model", [1, 2, 4])
def test_slices_of_tpus_keep_their_neighbours_in_the_model_axis(model):
    mesh = make_mesh((-1, model), tpus(2, (2, 2)))
    assert mesh.devices.shape == (2, 4 // model, model)
    assert len(set(mesh.devices.flat)) == 8
    assert (slices_of(mesh) == np.arange(2).reshape(2, 1, 1)).all()
    for row in mesh.devices.reshape(-1, model):
        for one, other in itertools.pairwise(row):  # one link apart
            assert sum(abs(a - b) for a, b in zip(one.coords, other.coords)) == 1


def test_the_page_s_table_of_axes_is_the_code_s():
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z, ]+) \| (\w+)[^|]*\|$", page, re.M)
    expected = [(name, ", ".join(axis.splits), axis.crosses) for name, axis in AXES.items()]
    assert [(name, axes, answer == "yes") for name, axes, answer in rows] == expected
    # The table's column on slices agrees with a mesh.
    assert {
        name for name, size in zip(AXES, make_mesh((-1, 1), gpus(1, 1)).devices.shape) if size > 1
    } == {name for name, axis in AXES.items() if axis.crosses}


def test_parameters_may_be_divided_over_nodes_if_asked():
    mesh = make_mesh((1, -1, 2), gpus(4, 4))
    assert mesh.devices.shape == (1, 4, 2)
    assert (slices_of(mesh)[0] == [[0, 0], [0, 0], [1, 1], [1, 1]]).all()
    both = slices_of(make_mesh((2, -1, 1), gpus(2, 2, 2, 2)))[..., 0]
    assert [set(row) for row in both] == [{0, 1}, {2, 3}]


@pytest.mark.parametrize("model", [1, 2, 4])
@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v6 lite"])
def test_one_slice_has_the_order_that_two_axes_would_have(model, kind):
    found = make_mesh((-1, model), tpus(1, (4, 4), kind)).devices
    options = {"devices": tpus(1, (4, 4), kind), "allow_split_physical_axes": True}
    expected = mesh_utils.create_device_mesh((16 // model, model), **options)
    assert found.shape == (1, 16 // model, model)
    assert found.reshape(-1, model).tolist() == expected.tolist()


@pytest.mark.parametrize("slices", [1, 2])
def test_a_dimension_of_a_slice_may_be_split_between_both_axes(slices):
    mesh = make_mesh((-1, 2), tpus(slices, (4, 4), "TPU v6 lite"))
    assert mesh.devices.shape == (slices, 8, 2)
    assert len(set(mesh.devices.flat)) == 16 * slices


@pytest.mark.parametrize(
    ("devices", "asked"),
    [
        (gpus(8, 8), (1, 16)),
        (gpus(8, 8), (1, -1)),
        (gpus(6, 6), (3, 4)),
        (gpus(8, 8, 8), (2, 12)),
        (tpus(2, (2, 2)), (1, 8)),
        (gpus(8, 4), (-1, 1)),
        (gpus(8, 7), (5, 3)),
        (gpus(8, 8), (8, 1)),
        (gpus(8, 8), (-1, -1, 2)),
        (gpus(8, 8), (1, 1, 16)),
        (gpus(8, 8), (2, 4, 1)),
    ],
)
def test_a_mesh_that_slices_cannot_have_is_refused(devices, asked):
    with pytest.raises(ValueError, match=r"Trainer\.mesh = \("):
        make_mesh(asked, devices)


def test_a_mesh_without_devices_has_the_same_shape_or_is_refused():
    for asked in (-1, 4), (1, -1, 4), (4, 1, -1):
        expected = make_mesh(asked, gpus(8, 8)).shape
        assert dict(abstract_mesh(asked, 16, 2).shape) == dict(expected)
    assert dict(abstract_mesh((-1, 16), 16).shape) == {"data": 1, "fsdp": 1, "model": 16}
    with pytest.raises(ValueError, match=r"Trainer\.mesh = \(1, 16\)"):
        abstract_mesh((1, 16), 16, 2)


@pytest.mark.parametrize("asked", [(-1, 1), (-1, 4), (2, 8), (4, 2, 2)])
def test_each_process_owns_the_rows_of_its_node(monkeypatch, asked):
    mesh = make_mesh(asked, gpus(8, 8))
    owned = []
    for process in range(2):
        monkeypatch.setattr(jax, "process_index", lambda of=process: of)
        owned.append(
            [n for first, count in owned_rows(mesh, 32) for n in range(first, first + count)]
        )
    assert owned == [list(range(16)), list(range(16, 32))]


@pytest.mark.skipif(jax.device_count() != 8, reason="needs eight devices")
def test_rows_reach_the_devices_of_their_slice(monkeypatch):
    device = type(jax.devices()[0])
    monkeypatch.setattr(device, "slice_index", property(lambda d: d.id % 2), raising=False)
    mesh = make_mesh((4, 2))
    assert (slices_of(mesh) == np.arange(2).reshape(2, 1, 1)).all()
    expected = np.arange(16, dtype=np.int32).reshape(8, 2)
    rows = put_rows(mesh, (8, 2), np.int32, "BT", lambda first, n: expected[first : first + n])
    np.testing.assert_array_equal(rows, expected)
    for shard in rows.addressable_shards:
        assert shard.index[0].start // 4 == shard.device.slice_index


def test_two_processes_in_two_slices_train_as_one(tmp_path, monkeypatch):
    lines = bound("Trainer", steps=3, log_every=1, eval_every=3, mesh=(-1, 2))
    path = write_config(tmp_path, *lines, *bound("Evaluation", cleared=False, max_steps=2))
    alone = train_here(build(path), tmp_path / "alone")  # on one device
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    (tmp_path / "sitecustomize.py").write_text(DISTINCT_SLICES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    statuses, outputs = ended(start_several(path, tmp_path / "run"))
    assert statuses == [0, 0], outputs
    assert re.search(r"devices, data x fsdp x model +2 x 1 x 2\n", outputs[0])
    found, expected = records(tmp_path / "run"), records(alone.folder.path)
    assert len(found) == 4 and "data/ledger" in found[0]
    names = {"train/loss", "train/scored_tokens", "eval/loss", "eval/scored_tokens"}
    for one, other in zip(found, expected, strict=True):
        assert one.get("data/ledger") == other.get("data/ledger")
        for key in names & {*other}:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-5)


def run_with(model="gated_delta", **settings):
    """The settings that a mesh reads, and a model."""
    defaults = dict(
        devices_over_time=4, segments_per_step=8, clear_state=False, bptt_depth=None,
        reread_segments=0, remat_segments=False, most_scored=None,
    )  # fmt: skip
    return SimpleNamespace(**defaults | settings), abstract(model)


def test_devices_over_time_are_a_part_of_the_data_axis():
    mesh = divided(*run_with(), make_mesh((8, 1), jax.devices()))
    assert dict(mesh.shape) == {"data": 2, "sequence": 4, "fsdp": 1, "model": 1}
    planned = divided(*run_with(), abstract_mesh((16, 1), 16))
    assert dict(planned.shape) == {"data": 4, "sequence": 4, "fsdp": 1, "model": 1}
    whole = abstract_mesh((16, 1), 16)
    assert divided(*run_with(devices_over_time=1), whole) is whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(devices_over_time=3), "must divide the 16 devices"),
        (dict(segments_per_step=6), "and the 6 segments"),
        (dict(bptt_depth=1), "bptt_depth"),
        (dict(clear_state=True), "clear_state"),
        (dict(reread_segments=2), "reread_segments"),
        (dict(most_scored=64), "most_scored"),
        (dict(model="rmt"), "RecurrentMemoryTransformer"),
    ],
)
def test_time_that_devices_cannot_divide_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        divided(*run_with(**settings), abstract_mesh((16, 1), 16))


def test_time_and_models_are_not_divided_together():
    with pytest.raises(ValueError, match="2 model-parallel devices"):
        divided(*run_with(), abstract_mesh((8, 2), 16))

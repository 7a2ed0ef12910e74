"""The reader of compiled programs, on a text one can check by eye and on a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from brt.compiled import array_bytes, axes_crossed, collectives, computations

TEXT = """
HloModule step, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%gathered (p: bf16[4,16]) -> bf16[8,16] {
  %p = bf16[4,16]{1,0} parameter(0)
  ROOT %all-gather.7 = bf16[8,16]{1,0} all-gather(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, \
dimensions={0}, metadata={op_name="jit(step)/layer/cell/dot" source_line=3}
}

%body (carry: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %carry = (s32[], f32[4,8]{1,0}) parameter(0)
  %value = f32[4,8]{1,0} get-tuple-element(%carry), index=1
  %all-reduce.1 = f32[4,8]{1,0} all-reduce(%value), channel_id=1, \
replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=%add
  %wide = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} fusion(%value), kind=kLoop, calls=%gathered
  ROOT %out = (s32[], /*index=1*/f32[4,8]{1,0}) tuple(%value, %all-reduce.1)
}

%outer (carry: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %carry.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[4,8]{1,0}) while(%carry.1), condition=%small, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}

%small (carry: (s32[], f32[4,8])) -> pred[] {
  %carry.2 = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %start = (f32[4,8]{1,0}, f32[4,32]{1,0}) all-gather-start(%a), replica_groups=[1,8]<=[8]
  %done = f32[4,32]{1,0} all-gather-done(%start)
  %scattered = f32[1,8]{1,0} reduce-scatter(%a), replica_groups={}, to_apply=%add
  %moved = f32[4,8]{1,0} collective-permute(%a), source_target_pairs={{0,2},{2,0}}
  ROOT %twice = (s32[], f32[4,8]{1,0}) while(%start), condition=%small, body=%outer, \
backend_config={"known_trip_count":{"n":"3"}}
}
"""


def test_every_collective_is_found_with_its_bytes_loops_and_scope():
    found = [(one.kind, one.bytes, one.loops, one.times) for one in collectives(TEXT)]
    assert sorted(found) == [
        ("all-gather", 8 * 16 * 2, 2, 15),
        ("all-gather", 4 * 32 * 4, 0, 1),
        ("all-reduce", 4 * 8 * 4, 2, 15),
        ("collective-permute", 4 * 8 * 4, 0, 1),
        ("reduce-scatter", 4 * 8 * 4, 0, 1),  # what goes in is more than what comes out
    ]
    assert {one.scope for one in collectives(TEXT)} == {"", "jit(step)/layer/cell/dot"}


def test_a_collective_crosses_the_axes_along_which_its_groups_differ():
    mesh = {"data": 4, "model": 2}
    crossed = {(one.kind, one.loops): axes_crossed(one, mesh) for one in collectives(TEXT)}
    assert crossed == {
        ("all-gather", 2): {"model"},
        ("all-reduce", 2): {"data"},
        ("all-gather", 0): {"data", "model"},
        ("reduce-scatter", 0): {"data", "model"},
        ("collective-permute", 0): {"data"},
    }


def test_instructions_are_read_with_what_they_call():
    found, entry = computations(TEXT)
    assert entry == "main"
    (loop,) = (line for line in found["outer"] if line.operation == "while")
    assert loop.called == {"condition": ["small"], "body": ["body"]}
    with pytest.raises(ValueError, match="ENTRY"):
        computations("HloModule empty")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", 4),
        ("bf16[3,5]{1,0}", 30),
        ("pred[9]", 9),
        ("s4[3]", 2),
        ("c64[2]", 16),
        ("(f32[2]{0}, (u8[3], token[]))", 11),
        ("f8e4m3fn[6]", 6),
    ],
)
def test_shapes_have_the_bytes_of_their_arrays(shape, expected):
    assert array_bytes(shape) == expected


def test_what_a_sharded_program_exchanges_is_found_in_its_own_text():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def loop(x, w):
        def turn(x, _):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(turn, x, None, length=6)[0].sum()

    x = jax.ShapeDtypeStruct(
        (8, 16), "float32", sharding=NamedSharding(mesh, PartitionSpec("data"))
    )
    w = jax.ShapeDtypeStruct(
        (16, 16), "float32", sharding=NamedSharding(mesh, PartitionSpec("model"))
    )
    found = collectives(jax.jit(loop).lower(x, w).compile().as_text())
    inside = [one for one in found if one.loops]
    assert inside and all(axes_crossed(one, mesh.shape) == {"model"} for one in inside)
    assert {one.times for one in inside} <= {1, 6}
    outside = [axes_crossed(one, mesh.shape) for one in found if not one.loops]
    assert any("data" in axes for axes in outside)

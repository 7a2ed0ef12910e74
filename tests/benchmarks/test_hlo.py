"""The reader of compiled programs, on manually written ones.

Tests of collectives, scopes and time (test_collectives.py, test_ring_laws.py) read the CPU's.
"""

from pathlib import Path

import pytest

from brt.benchmarks import hlo, hlo_costs

TEXT = (Path(__file__).parent / "program.hlo.txt").read_text()
"""A program of a TPU's compiler in miniature: a loop of 8 blocks whose weights are gathered inside,
a loop of 2 around one of 3, and collectives of every printed form."""


@pytest.fixture(scope="module")
def program():
    return hlo.parse(TEXT)


def instruction(program, name):
    (found,) = (
        each for lines in program.computations.values() for each in lines if each.name == name
    )
    return found


def test_a_tuple_with_layouts_and_comments_is_read_as_one_shape(program):
    found = instruction(program, "while.1")
    assert found.opcode == "while" and found.operand_names == ["tuple.5"]
    assert hlo.array_bytes(found.shape) == 4 + 8 * 16 * 2 + 16 * 4 * 2 + 4 * 16 * 4


def test_trip_counts_are_noted_or_compared_or_none(program):
    loops = {"while.1": 8, "while.3": 3, "while.2": 2}
    assert {n: hlo.trip_count(program, instruction(program, n)) for n in loops} == loops
    unknown = hlo.parse(TEXT.replace(" constant(3)", " add(%number.4, %number.4)"))
    assert hlo.trip_count(unknown, instruction(unknown, "while.3")) is None
    assert hlo_costs.estimated_cycles(unknown).by_scope["layer9/states"] == 8400 + 2 * 7


@pytest.mark.parametrize(
    ("op_name", "expected", "backward"),
    [
        ("jit(train_step)/jvp(layer3)/attention/dot_general", "layer3/attention", False),
        ("jit(train_step)/transpose(jvp(layer3))/states/while/body/mul", "layer3/states", True),
        ("jit(f)/jvp(checkpoint)/rematted_computation/layer11/memory/x", "layer11/memory", False),
        ("jit(train_step)/jvp(layer3/feed_forward)/dot", "layer3/feed_forward", False),
        ("jit(train_step)/jvp(vocabulary)/reduce_max", "vocabulary", False),
        ("jit(train_step)/optimizer/jit(clip)/max", "optimizer", False),
        ("jit(train_step)/jvp(layer3)/add", "layer3", False),
        ("jit(train_step)/jvp()/dot_general", None, False),
        ("state.params['layer'].attention", None, False),
    ],
)  # fmt: skip
def test_a_scope_is_the_layer_and_the_part_of_a_path(op_name, expected, backward):
    assert hlo_costs.scope(op_name) == expected
    assert hlo_costs.is_backward(op_name) == backward


def test_cycles_count_as_often_as_loops_run_and_add_up_by_scope(program):
    found = hlo_costs.estimated_cycles(program)
    assert found.by_scope == {
        # A fusion with quoted brackets, and the scope of its content, has the 1000.
        "layer9/states": 8 * (1000 + 50) + 2 * 3 * 7,
        "embedding": 300,
        "optimizer": 200,
        "layer0/attention": 20,  # waits for what has that scope, and has none itself
    }
    assert found.total == sum(found.by_scope.values()) == sum(found.by_part.values())
    assert list(found.by_part) == ["states", "embedding", "optimizer", "attention"]


def test_loops_have_trips_a_body_and_a_direction(program):
    forward, *others = hlo_costs.estimated_cycles(program).loops
    assert forward == hlo_costs.LoopCost(
        name="while.1",
        scope="layer9/states",
        backward=False,
        trips=8,
        times=1,
        body_cost=1050,
        cost=8400,
    )
    assert {loop.name: (loop.backward, loop.trips, loop.cost) for loop in others} == {
        "while.2": (True, 2, 42),
        "while.3": (True, 3, 42),
    }


def test_a_gather_beside_fusions_and_a_loop_counts_once():
    def fusion(number, channel):
        return f"""%beside.{number} (x.{number}: f32[4]) -> f32[8] {{
  %x.{number} = f32[4] parameter(0)
  ROOT %all-gather.{number} = f32[8] all-gather(%x.{number}), channel_id={channel}, replica_groups={{{{0,1}}}}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
}}
"""  # noqa: E501

    def program(*channels):
        return f"""HloModule m

{fusion(1, channels[0])}
{fusion(2, channels[1])}
{fusion(3, channels[2])}
%body (s.1: f32[4]) -> f32[4] {{
  %s.1 = f32[4] parameter(0)
  %fusion.1 = f32[8] fusion(%s.1), kind=kCustom, calls=%beside.1
  ROOT %next.1 = f32[4] slice(%fusion.1), slice={{[0:4]}}
}}

%condition (s.2: f32[4]) -> pred[] {{
  %s.2 = f32[4] parameter(0)
  ROOT %true.1 = pred[] constant(true)
}}

ENTRY %main (y.1: f32[4]) -> (f32[8], f32[8]) {{
  %y.1 = f32[4] parameter(0)
  %while.1 = f32[4] while(%y.1), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"5"}}}}
  %fusion.2 = f32[8] fusion(%y.1), kind=kCustom, calls=%beside.2
  %fusion.3 = f32[8] fusion(%y.1), kind=kCustom, calls=%beside.3
  ROOT %both = (f32[8], f32[8]) tuple(%fusion.2, %fusion.3)
}}
"""  # noqa: E501

    (once,) = hlo_costs.collectives(hlo.parse(program(7, 7, 7)))
    assert (once.bytes, once.times, once.loops, once.arrays) == (32, 1, (), (("f32", (8,)),))
    looped, other = hlo_costs.collectives(hlo.parse(program(7, 8, 8)))
    assert (looped.times, looped.loops, other.times) == (5, ("while.1",), 1)


def test_collectives_in_fusions_and_loops_count_once_if_split(program):
    found = hlo_costs.collectives(program)
    gathered = [each for each in found if each.kind == "all-gather"]
    outside, inside = sorted(gathered, key=lambda each: len(each.loops))
    assert (outside.bytes, outside.times, outside.loops) == (16 * 16 * 4, 1, ())
    assert (inside.bytes, inside.times, inside.loops) == (16 * 16 * 4, 8, ("while.1",))
    assert inside.scope == "layer9/states" and outside.scope == "layer0/attention"
    (reduced,) = (each for each in found if each.kind == "all-reduce")
    assert (reduced.bytes, reduced.times) == (4 * 16 * 4, 6)
    assert reduced.loops == ("while.2", "while.3")
    assert hlo_costs.collective_sums(found) == {
        "in_loops": {
            "all-gather": {"count": 1, "runs": 8, "bytes": 8 * 1024},
            "all-reduce": {"count": 1, "runs": 6, "bytes": 6 * 256},
        },
        "outside": {
            "all-gather": {"count": 1, "runs": 1, "bytes": 1024},
            "collective-permute": {"count": 1, "runs": 1, "bytes": 512},
        },
    }


def test_what_crosses_slices_is_told_by_the_groups_of_devices(program):
    found = hlo_costs.collectives(program)
    every = hlo_costs.collective_sums(found)
    inside, outside = every["in_loops"], every["outside"]
    # Devices 0 and 1 in one slice: sums over (0, 1) and (2, 3) stay inside.
    assert hlo_costs.across_slices(found, [0, 0, 1, 1]) == {
        "all-gather": {"count": 2, "runs": 9, "bytes": 9 * 1024},
        "collective-permute": outside["collective-permute"],
    }
    by_turns = hlo_costs.across_slices(found, [0, 1, 0, 1])  # gathers over (0, 2) and (1, 3) stay
    assert by_turns == {**inside, "collective-permute": outside["collective-permute"]}
    assert not hlo_costs.across_slices(found, [0, 0, 0, 0])


def test_a_tpu_transfer_between_slices_counts_as_its_collective():
    line = TEXT.index("\n", TEXT.index("ENTRY")) + 1
    sent = (
        "  %sent = f32[6,8]{1,0} parameter(9)\n"
        "  %send = (f32[6,8]{1,0}, u32[], token[]) send(%sent, %after), channel_id=9, "
        'is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}\n'
    )
    found = hlo_costs.collectives(hlo.parse(TEXT[:line] + sent + TEXT[line:]))
    crossing = hlo_costs.across_slices(found, [0, 0, 1, 1])
    assert crossing["all-reduce"] == {"count": 1, "runs": 1, "bytes": 6 * 8 * 4}


def test_groups_of_devices_are_read_in_every_form_with_axes(program):
    mesh = {"data": 2, "model": 2}
    groups = {each.groups for each in hlo_costs.collectives(program)}
    expected = {
        ((0, 2), (1, 3)): ("data",),
        ((0, 1), (2, 3)): ("model",),
        ((0, 1, 2, 3),): ("data", "model"),
        ((0, 1), (1, 2), (2, 3), (3, 0)): ("data", "model"),
    }
    assert groups == set(expected)
    assert {each: hlo_costs.axes_of(each, mesh) for each in groups} == expected
    assert hlo_costs.axes_of((), mesh) == ("data", "model")
    form = "replica_groups=mesh['a'=2,'b'=1,'c'=2] {'c'}, to_apply=%sum"
    assert hlo_costs.device_groups(form) == ((0, 1), (2, 3))
    assert hlo_costs.device_groups(form.replace("{'c'}", "{'a'}")) == ((0, 2), (1, 3))
    form = "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}, dimensions={0}"
    assert hlo_costs.device_groups(form) == ((0, 2, 4, 6), (1, 3, 5, 7))
    form = '_xla_megascale_target="{1,2}x{0:1}"'
    assert hlo_costs.device_groups(form) == ((0, 2), (1, 3))
    with pytest.raises(ValueError, match="device groups"):
        hlo_costs.device_groups("replica_groups=unknown")

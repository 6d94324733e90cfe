"""Programs' text, piece by piece."""

import pytest

from vit_jax.devices.hlo import array_bytes, array_shapes, read_program


@pytest.mark.parametrize(
    ("types", "size"),
    [
        (("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
        (("s16", "u16", "f16", "bf16"), 2),
        (("s32", "u32", "f32"), 4),
        (("s64", "u64", "f64"), 8),
    ],
)
def test_bytes_of_arrays(types, size):
    for item in types:
        assert array_bytes(f"({item}[3,5]{{1,0}}, token[], {item}[], {item}[0])") == [
            *(15 * size, size, 0)
        ]
    assert array_shapes("(f32[3,5]{1,0}, opaque[2], s32[])") == [("f32", (3, 5)), ("s32", ())]


LOOP = """\
%condition (t: (s32[])) -> pred[] {
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] constant(9)
  LINE
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (t: (s32[])) -> (s32[]) {
  ROOT %again = (s32[]) copy(%t)
}

%first (t: f32[2]) -> f32[2] {
  ROOT %a = f32[2]{0} negate(%t)
}

%second (t: f32[2]) -> f32[2] {
  ROOT %b = f32[2]{0} exponential(%t)
}

ENTRY %main (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %loop = (s32[]) while(%t), condition=%condition, body=%body
  %chosen = f32[2]{0} conditional(%k, %p, %p), branch_computations={%first, %second}
  %called = f32[2]{0} call(%p), to_apply=%first
  ROOT %sum = f32[2]{0} reduce(%p), to_apply=%second
}
"""


@pytest.mark.parametrize(
    ("line", "times"), [("", 9), ("%other = s32[] constant(4)", 1), ("%x = f32[] constant(4)", 9)]
)
def test_what_runs_and_how_often(line, times):
    """A condition with two numbers does not tell which is the limit."""
    program = read_program(LOOP.replace("LINE", line))
    assert program.entry == "main"
    found = [(each.instruction.name, each.times, each.computation) for each in program.executed()]
    assert found == [
        *(("p", 1, "main"), ("loop", 1, "main"), ("again", times, "body"), ("chosen", 1, "main")),
        *(("a", 1, "first"), ("b", 1, "second"), ("called", 1, "main"), ("a", 1, "first")),
        ("sum", 1, "main"),
    ]
    root = program.computations["main"]["sum"]
    assert (root.is_root, root.operands, root.called) == (True, ["p"], [])


@pytest.mark.parametrize(
    "called",
    [
        "branch_computations={%first, %second}",
        "branch_computations={first, second}",
        "true_computation=%first, false_computation=%second",
        "true_computation=first, false_computation=second",
    ],
)
def test_each_branch_is_one_that_runs(called):
    text = LOOP.replace("LINE", "").replace("branch_computations={%first, %second}", called)
    found = [each.instruction.name for each in read_program(text).executed()]
    assert found[3:6] == ["chosen", "a", "b"]
    chosen = read_program(text).computations["main"]["chosen"]
    assert (chosen.called, chosen.operands) == (["first", "second"], ["k", "p", "p"])


def test_what_is_within_a_fusion_runs_if_it_is_asked_for():
    fused = "%chosen = f32[2]{0} fusion(%p), kind=kLoop, calls=%second"
    lines = LOOP.replace("LINE", "").splitlines()
    text = "\n".join("  " + fused if "%chosen" in line else line for line in lines)
    program = read_program(text)
    for into, names in ((False, ["chosen", "called"]), (True, ["chosen", "b", "called"])):
        found = list(program.executed(into_fusions=into))
        assert [each.instruction.name for each in found[3 : 3 + len(names)]] == names
    inside = found[4]
    assert (inside.computation, inside.caller.name, inside.times) == ("second", "chosen", 1)
    assert found[0].caller is None


def test_a_loop_within_a_loop_runs_as_often_as_both_say():
    inner = '%in = (s32[]) while(%t), body=%first, backend_config={"known_trip_count":{"n":"4"}}'
    text = LOOP.replace("LINE", "").replace("ROOT %again = (s32[]) copy(%t)", inner)
    found = [each.times for each in read_program(text).executed() if each.computation == "first"]
    assert found == [9 * 4, 1, 1]

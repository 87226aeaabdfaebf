"""The arena: arrays that live at the same time never share a byte, others do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seer.codegen.memory_plan import ALIGNMENT, Lifetime, align, plan_memory

lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 20),
    st.integers(0, 5),
)


@given(st.lists(lifetimes, max_size=20))
def test_arrays_in_use_together_do_not_overlap(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    spans = [(o, o + life.size_bytes) for o, life in zip(plan.offsets, lives, strict=True)]
    assert all(o % ALIGNMENT == 0 for o in plan.offsets)
    assert all(end <= plan.size_bytes for _, end in spans)
    for a in range(len(lives)):
        for b in range(a):
            if lives[a].meets(lives[b]):
                assert (
                    spans[a][1] <= spans[b][0]
                    or spans[b][1] <= spans[a][0]
                    or 0
                    in (
                        lives[a].size_bytes,
                        lives[b].size_bytes,
                    )
                )


@given(st.lists(lifetimes, max_size=20))
def test_arena_is_no_larger_than_all_arrays_and_no_smaller_than_any_step(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert plan.size_bytes <= sum(align(life.size_bytes) for life in lives)
    for step in range(26):
        assert plan.size_bytes >= sum(life.size_bytes for life in lives if life.first <= step <= life.last)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(4096, k, k + 1) for k in range(10)]
    assert plan_memory(chain).size_bytes == 2 * 4096


def test_nothing_to_place() -> None:
    assert plan_memory([]).size_bytes == 0

"""Machine code is read right: which values of local memory may be accumulators."""

from __future__ import annotations

import pytest
from cuda_sass import local_arrays, spilled_results

START = ["S2R R7, SR_TID.X", "CS2R R2, SRZ", "IMAD R4, R7, 0x4, RZ", "CS2R R8, SRZ"]
LOOP = [".L_x_0:", "{first}", "LDS R5, [R4]", "FFMA R2, R5, R5, R2", "{last}", "@P0 BRA `(.L_x_0)", "EXIT"]


def code(instructions: list[str]) -> list[str]:
    """As nvdisasm writes it."""
    return [
        i if i.endswith(":") else f'        /*{16 * k:04x}*/                   {i}   (*"SpillRefill"*);'
        for k, i in enumerate(instructions)
    ]


# The first and the last instruction of a loop, and whether an accumulator is spilled.
CASES = {
    "an index": ("STL [R1], R4", "IADD3 R4, R4, 0x10, RZ", False),
    "a product": ("LDL R5, [R1]", "STL [R1], R2", True),
    "a product of the last round": ("STL [R1+0x4], R2", "LDL R2, [R1+0x4]", False),
    "what became a product": ("STL [R1], R2", "NOP", True),
    "the second of a pair": ("STL.64 [R1], R8", "HMMA.1688.F32.TF32 R8, R12, R14, R8", True),
    "the fourth of a matrix": ("STL [R1], R11", "HMMA.1688.F32.TF32 R8, R12, R14, R8", True),
    "beside a matrix": ("STL [R1], R12", "HMMA.1688.F32.TF32 R8, R12, R14, R8", False),
    "a copy of a product": ("STL [R1], R9", "IMAD.MOV.U32 R9, RZ, RZ, R2", True),
    "a copy of an index": ("STL [R1], R9", "IMAD.MOV.U32 R9, RZ, RZ, R4", False),
    "an operand": ("LDL R2, [R1]", "STL [R1], R5", False),
    "zero": ("STL [R1], RZ", "NOP", False),
    "a product or an index": ("STL [R1], R2", "@P1 IADD3 R2, R4, 0x1, RZ", True),
    "an index where a product was": ("STL [R1], R2", "IADD3 R2, R4, 0x1, RZ", False),
    "a guard": ("STL [R1], R9", "P2R R9, PR, RZ, 0x20", False),
}


@pytest.mark.parametrize("case", CASES)
def test_spilled_results(case: str) -> None:
    first, last, is_spilled = CASES[case]
    lines = code(START + [x.format(first=first, last=last) for x in LOOP])
    stores = [x.strip() for x in lines if "STL" in x]
    assert spilled_results(lines) == (stores if is_spilled else [])


def test_both_ways_are_followed() -> None:
    """A product is spilled after a branch, on the way of which it may have been overwritten."""
    ways = ["@P0 BRA `(.L_x_1)", "FADD R2, R2, R2", "BRA `(.L_x_2)", ".L_x_1:", "MOV R2, R4", ".L_x_2:"]
    assert len(spilled_results(code([*START, *ways, "STL [R1], R2", "EXIT"]))) == 1
    assert spilled_results(code([*START, *ways[:1], *ways[2:], "STL [R1], R2", "EXIT"])) == []


def test_arrays_are_what_no_register_spilled() -> None:
    lines = code(["STL [R1], R4", "LDL R5, [R1+0x4]", "EXIT"])
    plain = [x.replace('(*"SpillRefill"*)', "") for x in lines]
    assert local_arrays(lines) == [] and local_arrays(plain) == plain[:2]

"""The kind of a processor, from texts of real machines."""

from __future__ import annotations

from pslaunch.node.agent.cpu import describe_cpu, read_cpu

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz
flags\t\t: fpu sse4_2 avx2 constant_tsc avx512f fma
bogomips\t: 5000.00

processor\t: 1
vendor_id\t: GenuineIntel
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm sve
CPU implementer\t: 0x41
CPU part\t: 0xd0c
"""


def test_model_and_vector_instructions_are_the_kind() -> None:
    assert describe_cpu(XEON) == "GenuineIntel 6 85 avx2 avx512f fma sse4_2"
    assert describe_cpu(GRAVITON) == "0x41 0xd0c asimd sve"
    assert describe_cpu("") == ""


def test_other_facts_of_a_processor_do_not_change_its_kind() -> None:
    assert describe_cpu(XEON.replace("constant_tsc", "").replace("5000.00", "4999.99")) == describe_cpu(XEON)


def test_this_machine_has_a_kind() -> None:
    assert read_cpu()

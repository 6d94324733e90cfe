"""Estimated times: kernels and cycles counted by hand in texts of the forms that the compilers write."""

import pytest

from vit_jax.devices.estimate import (
    LAUNCH_SECONDS,
    SHARE_OF_BANDWIDTH,
    SHARE_OF_PEAK,
    TPU_CLOCKS,
    Kernel,
    device_seconds,
    gpu_kernels,
    gpu_seconds,
    kernel_seconds,
    tpu_seconds,
)
from vit_jax.devices.hardware import CHIPS
from vit_jax.devices.hlo import read_program

H100 = CHIPS["NVIDIA H100 80GB HBM3"]

# A loop of 12 turns with a product by cuBLAS, a fusion that takes one layer of a stack and one that
# writes into a stack; before it a convolution and its gradients, a copy, an exchange, a float32 product.
TEXT = """\
HloModule jit_step

%read (p: f32[12,8,4], i: s32[]) -> bf16[8,4] {
  %p = f32[12,8,4]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %slice = f32[1,8,4]{2,1,0} dynamic-slice(%p, %i, %z, %z), dynamic_slice_sizes={1,8,4}
  ROOT %convert = bf16[8,4]{1,0} convert(%slice)
}

%write (p: bf16[12,16,4], u: bf16[16,4], i: s32[]) -> bf16[12,16,4] {
  %p = bf16[12,16,4]{2,1,0} parameter(0)
  %u = bf16[16,4]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %b = bf16[1,16,4]{2,1,0} bitcast(%u)
  ROOT %update = bf16[12,16,4]{2,1,0} dynamic-update-slice(%p, %b, %i, %z, %z)
}

%body (t: (s32[], f32[12,8,4], bf16[12,16,4])) -> (s32[], f32[12,8,4], bf16[12,16,4]) {
  %t = (s32[], f32[12,8,4]{2,1,0}, bf16[12,16,4]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %stack = f32[12,8,4]{2,1,0} get-tuple-element(%t), index=1
  %saved = bf16[12,16,4]{2,1,0} get-tuple-element(%t), index=2
  %w = bf16[8,4]{1,0} fusion(%stack, %i), kind=kLoop, calls=%read
  %x = bf16[16,8]{1,0} constant({...})
  %dot = (bf16[16,4]{1,0}, s8[1024]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]},"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}}
  %y = bf16[16,4]{1,0} get-tuple-element(%dot), index=0
  %next = bf16[12,16,4]{2,1,0} fusion(%saved, %y, %i), kind=kLoop, calls=%write
  ROOT %out = (s32[], f32[12,8,4]{2,1,0}, bf16[12,16,4]{2,1,0}) tuple(%i, %stack, %next)
}

ENTRY %main (image: bf16[2,8,8,3]) -> f32[4,4] {
  %image = bf16[2,8,8,3]{3,2,1,0} parameter(0)
  %k = bf16[4,4,3,16]{3,2,1,0} constant({...})
  %conv = (bf16[2,2,2,16]{3,2,1,0}, u8[0]{0}) custom-call(%image, %k), window={size=4x4 stride=4x4}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward"
  %dy = bf16[2,2,2,16]{3,2,1,0} get-tuple-element(%conv), index=0
  %dk = (bf16[4,4,3,16]{3,2,1,0}, u8[0]{0}) custom-call(%image, %dy), dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convBackwardFilter"
  %loop = (s32[], f32[12,8,4]{2,1,0}, bf16[12,16,4]{2,1,0}) while(%init), condition=%read, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %reduced = f32[4,4]{1,0} all-reduce-start(%g), replica_groups=[1,8]<=[8]
  %done = f32[4,4]{1,0} all-reduce-done(%reduced)
  %exact = (f32[4,4]{1,0}, s8[64]{0}) custom-call(%done, %done), custom_call_target="__cublas$gemm", backend_config={"lhs_contracting_dimensions":["0"],"operand_precision":["HIGHEST","HIGHEST"]}
  ROOT %copy = f32[4,4]{1,0} copy(%done)
}
"""


def test_kernels_are_counted_with_their_bytes_and_products():
    kernels = {kernel.name: kernel for kernel in gpu_kernels(read_program(TEXT))}
    assert kernels.keys() == {"w", "dot", "next", "conv", "dk", "exact", "copy"}
    assert {name for name, kernel in kernels.items() if kernel.times == 12} == {"w", "dot", "next"}
    assert kernels["w"].bytes == 32 * 4 + 4 + 32 * 2, "a layer, the index, the result"
    assert kernels["next"].bytes == 64 * 2 + 4 + 64 * 2
    assert kernels["dot"].bytes == 2 * (128 + 32 + 64), "without the workspace"
    assert kernels["dot"].flops == 2 * 16 * 8 * 4
    assert kernels["copy"].bytes == 2 * 64
    assert kernels["conv"].flops == kernels["dk"].flops == 2 * (2 * 2 * 2) * 16 * (4 * 4 * 3)
    assert (kernels["exact"].exact, kernels["exact"].float32) == (True, True)
    assert kernels["exact"].flops == 2 * 4 * 4 * 4
    assert not kernels["dot"].float32


def test_a_kernel_takes_the_longer_of_its_bytes_and_products():
    moving = Kernel("a", 1, 10**9, 1e9)
    assert kernel_seconds(moving, H100) == pytest.approx(LAUNCH_SECONDS + 1e9 / (0.85 * 3350e9))
    product = Kernel("a", 1, 10, 1e12)
    peak = 0.70 * 1979e12 / 2
    assert kernel_seconds(product, H100) == pytest.approx(LAUNCH_SECONDS + 1e12 / peak)
    half = product._replace(float32=True)
    assert kernel_seconds(half, H100) == pytest.approx(LAUNCH_SECONDS + 2e12 / peak)
    exact = half._replace(exact=True)
    assert kernel_seconds(exact, H100) == pytest.approx(LAUNCH_SECONDS + 1e12 / (0.7 * 67e12))
    assert gpu_seconds([product._replace(times=3)], H100) == 3 * kernel_seconds(product, H100)
    assert gpu_seconds([product], CHIPS["Tesla T4"]) is None


def test_a_tpu_s_cycles_are_summed_over_loops_once():
    text = """\
%inner (q: f32[8]) -> f32[8] {
  ROOT %n = f32[8]{0} add(%q, %q), backend_config={"estimated_cycles":"5"}
}

%body (p: (f32[8])) -> (f32[8]) {
  %a = f32[8]{0} fusion(%x), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"700"}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %loop = (f32[8]{0}) while(%x), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"2"},"estimated_cycles":"9999"}
  ROOT %b = f32[8]{0} copy(%x), backend_config={"estimated_cycles":"100"}
}
"""
    assert tpu_seconds(read_program(text), "TPU v5e") == 1500 / 1.5e9
    assert tpu_seconds(read_program(text), "TPU7x") is None, "its clock is not published"


@pytest.mark.parametrize(
    ("operation", "starts"),
    [
        *((name, 0) for name in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")),
        *((name, 0) for name in ("while", "conditional", "call", "after-all", "opt-barrier")),
        *((name, 0) for name in ("partition-id", "replica-id", "async-start", "async-update")),
        *((name, 0) for name in ("async-done", "copy-done", "all-gather", "all-reduce-start")),
        *((name, 0) for name in ("reduce-scatter", "all-to-all", "collective-permute-done")),
        *((name, 1) for name in ("copy", "copy-start", "reduce", "fusion", "custom-call", "sort")),
    ],
)
def test_what_starts_a_kernel(operation, starts):
    text = f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  ROOT %a = f32[8]{{0}} {operation}(%x)\n}}\n"
    assert len(gpu_kernels(read_program(text))) == starts


@pytest.mark.parametrize(
    ("lines", "size"),  # Of arrays of 12 x 8 and 1 x 8 float32.
    [
        (["ROOT %r = f32[12,8] negate(%p)"], 384 + 384),
        (["ROOT %r = f32[1,8] slice(%p)"], 32 + 32),
        (
            [
                "%a = f32[1,8] gather(%p)",
                "%b = f32[1,8] slice(%p)",
                "ROOT %r = f32[1,8] add(%a, %b)",
            ],
            96,
        ),
        (["%a = f32[1,8] slice(%p)", "ROOT %r = f32[12,8] add(%a, %p)"], 384 + 384),
        (["%f = f32[96] bitcast(%p)", "ROOT %r = f32[1,8] dynamic-slice(%f)"], 32 + 32),
        (
            [f"%{n} = f32[8,8] slice(%p)" for n in "ab"] + ["ROOT %r = f32[8,8] add(%a, %b)"],
            384 + 256,
        ),
        (["ROOT %r = f32[1,8] negate(%u)"], 32 + 32),  # What nobody uses is not read.
        (["ROOT %r = f32[12,8] dynamic-update-slice(%p, %u)"], 32 + 32),
        (["%w = f32[12,8] dynamic-update-slice(%p, %u)", "ROOT %r = f32[96] bitcast(%w)"], 64),
        (
            [
                "%w = f32[12,8] dynamic-update-slice(%p, %u)",
                "%n = f32[1,8] negate(%u)",
                "ROOT %r = (f32[12,8], f32[1,8]) tuple(%w, %n)",
            ],
            32 + 32 + 32,
        ),
    ],
)
def test_what_a_fusion_reads_and_writes(lines, size):
    head = ["%p = f32[12,8] parameter(0)", "%u = f32[1,8] parameter(1)"]
    text = "%f (p: f32[12,8], u: f32[1,8]) -> f32[1] {\n"
    text += "".join(f"  {line}\n" for line in [*head, *lines])
    text += "}\n\nENTRY %main (p: f32[2]) -> f32[1] {\n  ROOT %k = f32[1] fusion(%x), calls=%f\n}\n"
    (kernel,) = gpu_kernels(read_program(text))
    assert kernel.bytes == size


def test_constants_that_estimates_compare_by():
    """A change of them makes all that was written down of other programs another's."""
    assert (SHARE_OF_BANDWIDTH, SHARE_OF_PEAK, LAUNCH_SECONDS) == (0.85, 0.7, 2.5e-6)
    clocks = {"TPU v2": 0.7, "TPU v3": 0.94, "TPU v4": 1.05}
    clocks |= dict.fromkeys(("TPU v5 lite", "TPU v5e"), 1.5)
    clocks |= dict.fromkeys(("TPU v5", "TPU v5p"), 1.75)
    assert clocks == {kind: clock / 1e9 for kind, clock in TPU_CLOCKS.items()}
    for kind in ("TPU v4", "TPU v5 lite", "TPU v5p"):  # Peak = clock x units x 128 x 128 x 2.
        units = CHIPS[kind].flops / TPU_CLOCKS[kind] / (2 * 128 * 128)
        assert units == pytest.approx(4 if kind == "TPU v5 lite" else 8, rel=0.01)


def test_a_kernel_of_float32_has_half_the_speed_unless_it_is_exact():
    work = Kernel("k", 3, 0, flops=7e12)
    peak = H100.flops * SHARE_OF_PEAK
    assert kernel_seconds(work, H100) == pytest.approx(LAUNCH_SECONDS + 7e12 / peak)
    half = work._replace(float32=True)
    assert kernel_seconds(half, H100) == pytest.approx(LAUNCH_SECONDS + 14e12 / peak)
    exact = half._replace(exact=True)
    seconds = 7e12 / (67e12 * SHARE_OF_PEAK)
    assert kernel_seconds(exact, H100) == pytest.approx(LAUNCH_SECONDS + seconds)
    moving = Kernel("k", 3, bytes=10**9, flops=1.0)
    seconds = LAUNCH_SECONDS + 1e9 / (3350e9 * SHARE_OF_BANDWIDTH)
    assert kernel_seconds(moving, H100) == pytest.approx(seconds)
    assert gpu_seconds([moving], H100) == pytest.approx(3 * seconds)
    assert gpu_seconds([moving], CHIPS["NVIDIA L4"]) is None  # Figures are missing.


def test_slices_move_what_they_hold_and_a_gradient_has_its_forward_pass_s_products():
    text = """\
ENTRY %main (p: f32[12,8]) -> f32[12,8] {
  %p = f32[12,8]{1,0} parameter(0)
  %u = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %dy = bf16[2,2,2,16]{3,2,1,0} parameter(3)
  %k = bf16[4,4,3,16]{3,2,1,0} parameter(4)
  %dx = (bf16[2,8,8,3]{3,2,1,0}, u8[0]{0}) custom-call(%dy, %k), dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convBackwardInput"
  %s = f32[1,8]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,8}
  ROOT %w = f32[12,8]{1,0} dynamic-update-slice(%p, %u, %i, %i)
}
"""
    kernels = {kernel.name: kernel for kernel in gpu_kernels(read_program(text))}
    assert (kernels["s"].bytes, kernels["w"].bytes) == (2 * 8 * 4, 2 * 8 * 4)
    assert kernels["dx"].flops == 2 * (2 * 2 * 2) * 16 * (4 * 4 * 3)
    program = read_program(text)
    assert tpu_seconds(program, "TPU v5e") is None, "its compiler has stated no cycles"
    assert device_seconds(program, "TPU v5e") is None
    found = gpu_seconds(list(kernels.values()), H100)
    assert device_seconds(program, "NVIDIA H100 80GB HBM3") == found > 3 * LAUNCH_SECONDS
    assert device_seconds(program, "cpu") is None

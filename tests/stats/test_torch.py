"""Tensors of torch: every layout and type is read right, or refused in words; nothing is changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from layerscope.errors import SelectError
from layerscope.records import Floats
from layerscope.stats import kernel, reference, spec
from layerscope.stats.torch import add, dtype_name
from tests.stats.arrays import assert_same_summary

GENERATOR = torch.Generator().manual_seed(0)
CUBE = torch.randn(4, 6, 8, 10, generator=GENERATOR)


def summary(tensor: torch.Tensor) -> spec.Summary:
    arena = kernel.Arena()
    assert add(arena, tensor) == 0
    collected = arena.drain()
    return spec.Summary(collected.moments[0], spec.decode(int(collected.m[0]), collected.bits.tobytes()))


def assert_summary_of(tensor: torch.Tensor, values: Floats, smallest_normal: float) -> None:
    assert_same_summary(summary(tensor), reference.summarize(values, smallest_normal), values.ravel())


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.transpose(1, 3),
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t[:, ::2],
        lambda t: t[:, :, 3],
        lambda t: t[1, 2, 3, 4],
        lambda t: t.flatten()[5:],
        lambda t: t[:, :1].expand(-1, 6, -1, -1),
        lambda t: t.flip(0),
        lambda t: t[:0],
        lambda t: t.permute(3, 1, 0, 2)[:, None],
        lambda t: t.as_strided((5, 5), (1, 1)),
    ],
    ids=[
        "contiguous", "transposed", "channels last", "every other", "slice", "scalar", "offset", "broadcast", "flipped",
        "empty", "permuted", "overlapping",
    ],
)  # fmt: skip
def test_a_view_has_the_summary_of_its_elements(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = view(CUBE)
    assert_summary_of(tensor, tensor.double().numpy(), spec.SMALLEST_NORMAL["float32"])


class Watched(kernel.Arena):
    """An arena that remembers the last address it was given."""

    address = 0

    def add(self, address: int, count: int, number: int) -> int:
        self.address = address
        return super().add(address, count, number)


def test_a_dense_view_is_read_where_it_lies() -> None:
    arena = Watched()
    for view in (CUBE, CUBE.transpose(0, 2), CUBE[1], CUBE.permute(3, 2, 1, 0)):
        add(arena, view)
        assert arena.address == view.data_ptr()


@pytest.mark.parametrize("name", kernel.STORED)
def test_every_stored_type_is_read(name: str) -> None:
    tensor = (CUBE * 40).to(getattr(torch, name))
    assert dtype_name(tensor) == name
    assert_summary_of(tensor, tensor.double().numpy(), spec.SMALLEST_NORMAL[name])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_every_float8_is_read_with_subnormals_of_its_own(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    assert torch.finfo(dtype).smallest_normal == spec.SMALLEST_NORMAL[name]
    assert_summary_of(tensor, tensor.double().numpy(), spec.SMALLEST_NORMAL[name])
    mantissa_bits = 3 if "e4m3" in name else 2
    assert summary(tensor).moments[spec.COLUMN["subnormal"]] == 2 * (2**mantissa_bits - 1)


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_integers_are_read(name: str) -> None:
    tensor = torch.tensor([0, 1, 40_000, 65_535]).to(getattr(torch, name))
    assert_summary_of(tensor, np.array([0.0, 1.0, 40_000.0, 65_535.0]), 0.0)


def test_a_complex_tensor_is_summarised_by_its_magnitude() -> None:
    tensor = torch.complex(CUBE, CUBE.flip(0)).requires_grad_()
    for given in (tensor, tensor.conj(), tensor.T if tensor.ndim == 2 else tensor.transpose(0, 1)):
        assert_summary_of(given, given.detach().abs().double().numpy(), spec.SMALLEST_NORMAL["float32"])


def test_a_negative_view_is_read_with_its_sign() -> None:
    view = torch.complex(CUBE, CUBE.abs()).conj().imag
    assert view.is_neg()
    assert summary(view).moments[spec.COLUMN["max"]] <= 0


def test_a_tensor_that_requires_grad_stays_as_it_was() -> None:
    leaf = CUBE.clone().requires_grad_()
    tensor = (leaf * 2)[:, ::2]
    version, function, state = tensor._version, tensor.grad_fn, torch.get_rng_state()
    before = tensor.detach().clone()
    summary(tensor)
    summary(leaf)
    assert tensor._version == version
    assert tensor.grad_fn is function
    assert leaf.grad is None
    assert torch.equal(tensor.detach(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tensors_are_read_in_every_grad_mode(mode: Callable[[], torch.no_grad | torch.inference_mode]) -> None:
    with mode():
        tensor = CUBE[:, ::2] * 3
        assert_summary_of(tensor, tensor.double().numpy(), spec.SMALLEST_NORMAL["float32"])


def refused() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these layouts a prototype
        plain = torch.eye(4)
        return {
            "sparse_coo": plain.to_sparse(),
            "sparse_csr": plain.to_sparse_csr(),
            "nested": torch.nested.nested_tensor([plain, plain]),
            "meta": plain.to("meta"),
            "quint8": torch.quantize_per_tensor(plain, 0.1, 0, torch.quint8),
            "float4_e2m1fn_x2": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        }


@pytest.mark.parametrize("word", ["sparse_coo", "sparse_csr", "nested", "meta", "quint8", "float4_e2m1fn_x2"])
def test_what_cannot_be_read_is_refused_by_name(word: str) -> None:
    arena = kernel.Arena()
    with pytest.raises(SelectError, match=word):
        add(arena, refused()[word])
    assert len(arena) == 0


def test_a_wrapper_without_memory_is_refused() -> None:
    seen: list[str] = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(SelectError, match="no memory to read") as caught:
            add(kernel.Arena(), x)
        seen.append(str(caught.value))
        return x

    torch.vmap(inside)(CUBE)
    assert len(seen) == 1

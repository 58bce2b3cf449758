"""Tensors of torch: every layout and type is read right, or refused in words; nothing is changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from layerscope.errors import SelectError
from layerscope.model import summary_spec
from layerscope.model.number_formats import BYTES, WORDS
from layerscope.model.records import Floats
from layerscope.stats import kernel, merging
from layerscope.stats.torch import add, add_many, dtype_name
from tests.stats.arrays import assert_same_summary

GENERATOR = torch.Generator().manual_seed(0)
CUBE = torch.randn(4, 6, 8, 10, generator=GENERATOR)


def summary(tensor: torch.Tensor) -> summary_spec.Summary:
    arena = kernel.Arena()
    assert add(arena, tensor) == 0
    collected = arena.drain()
    return summary_spec.Summary(
        collected.moments[0], summary_spec.decode(int(collected.m[0]), collected.bits.tobytes())
    )


def assert_summary_of(tensor: torch.Tensor, values: Floats, smallest_normal: float) -> None:
    assert_same_summary(summary(tensor), kernel.summarize(values, smallest_normal), values.ravel())


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
    assert_summary_of(tensor, tensor.double().numpy(), summary_spec.SMALLEST_NORMAL["float32"])


class Watched(kernel.Arena):
    """An arena that remembers the last address and number of threads it was given."""

    address = threads = 0

    def add_many(self, plan: list[int], threads: int = 1) -> int:
        self.address, self.threads = plan[0], threads
        return super().add_many(plan, threads)


def test_a_dense_view_is_read_where_it_lies() -> None:
    arena = Watched()
    for view in (CUBE, CUBE.transpose(0, 2), CUBE[1], CUBE.permute(3, 2, 1, 0)):
        add(arena, view)
        assert arena.address == view.data_ptr()


def test_large_tensors_are_shared_among_as_many_threads_as_torch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    arena, large = Watched(), torch.zeros(kernel.LARGE)
    for given, threads in ((large, 3), (CUBE, 1)):
        add(arena, given)
        assert arena.threads == threads
        add_many(arena, [CUBE, given])
        assert arena.threads == threads


@pytest.mark.parametrize("name", [*WORDS, "int8", "uint8", "bool"])
def test_every_plain_type_is_read(name: str) -> None:
    tensor = (CUBE * 40).abs().to(getattr(torch, name))
    assert dtype_name(tensor) == name
    assert_summary_of(tensor, tensor.double().numpy(), summary_spec.SMALLEST_NORMAL[name])


FLOAT8 = [name for name in BYTES if name.startswith("float8")]


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("step", [1, 3], ids=["in place", "copied"])
def test_every_float8_is_read_as_torch_reads_it(name: str, step: int) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(256, dtype=torch.uint8).repeat(3)[::step].view(dtype)
    assert_summary_of(tensor, tensor.to(torch.float32).double().numpy(), summary_spec.SMALLEST_NORMAL[name])


@pytest.mark.parametrize(("name", "subnormal"), [*zip(FLOAT8, (14, 14, 6, 6, 0), strict=True)])
def test_subnormals_of_a_float8_are_its_own(name: str, subnormal: int) -> None:
    dtype = getattr(torch, name)
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    assert torch.finfo(dtype).smallest_normal == summary_spec.SMALLEST_NORMAL[name] or subnormal == 0
    assert summary(every).moments[summary_spec.COLUMN["subnormal"]] == subnormal


def test_both_elements_in_a_byte_of_float4_are_read() -> None:
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    packed = torch.arange(256, dtype=torch.uint8)
    values = np.concatenate((halves[packed.numpy() & 15], halves[packed.numpy() >> 4]))
    assert_summary_of(packed.view(torch.float4_e2m1fn_x2), values, 1.0)
    assert summary(packed.view(torch.float4_e2m1fn_x2)).moments[summary_spec.COLUMN["count"]] == 512
    every_other = np.concatenate((halves[packed.numpy()[::2] & 15], halves[packed.numpy()[::2] >> 4]))
    assert_summary_of(packed.view(torch.float4_e2m1fn_x2)[::2], every_other, 1.0)


def test_a_complex_tensor_is_summarized_by_its_magnitude() -> None:
    tensor = torch.complex(CUBE, CUBE.flip(0)).requires_grad_()
    for given in (tensor, tensor.conj(), tensor.T if tensor.ndim == 2 else tensor.transpose(0, 1)):
        assert_summary_of(given, given.detach().abs().double().numpy(), summary_spec.SMALLEST_NORMAL["float32"])


def test_a_negative_view_is_read_with_its_sign() -> None:
    view = torch.complex(CUBE, CUBE.abs()).conj().imag
    assert view.is_neg()
    assert summary(view).moments[summary_spec.COLUMN["max"]] <= 0
    assert summary(view[1, 2, 3, 4]).moments[summary_spec.COLUMN["max"]] < 0


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
        assert_summary_of(tensor, tensor.double().numpy(), summary_spec.SMALLEST_NORMAL["float32"])


def refused() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these layouts a prototype
        plain = torch.eye(4)
        return {
            "sparse_coo": plain.to_sparse(),
            "sparse_csr": plain.to_sparse_csr(),
            "nested": torch.nested.nested_tensor([plain, plain], layout=torch.jagged),
            "mkldnn": plain.to_mkldnn(),
            "Uninitialized": torch.nn.UninitializedParameter(),
            "meta": plain.to("meta"),
            "quint8": torch.quantize_per_tensor(plain, 0.1, 0, torch.quint8),
            "bits8": torch.zeros(4, dtype=torch.uint8).view(torch.bits8),
        }


WORDS_OF_REFUSALS = ["sparse_coo", "sparse_csr", "nested", "mkldnn", "Uninitialized", "meta", "quint8", "bits8"]


@pytest.mark.parametrize("word", WORDS_OF_REFUSALS)
def test_what_cannot_be_read_is_refused_by_name(word: str) -> None:
    arena = kernel.Arena()
    with pytest.raises(SelectError, match=word):
        add(arena, refused()[word])
    assert len(arena) == 0


def test_a_wrapper_without_memory_is_refused() -> None:
    seen: list[str] = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(SelectError, match="no memory to summarize") as caught:
            add(kernel.Arena(), x)
        seen.append(str(caught.value))
        return x

    torch.vmap(inside)(CUBE)
    assert len(seen) == 1


def test_many_tensors_at_once_have_the_summaries_they_have_one_by_one() -> None:
    tensors = [
        CUBE, CUBE[:, ::2], CUBE.transpose(0, 1), torch.tensor(3.0), torch.empty(0, 4), torch.complex(CUBE, CUBE),
        CUBE.to(torch.float8_e5m2), CUBE.half(), torch.nn.Parameter(CUBE), CUBE > 0, CUBE.expand(3, -1, -1, -1, -1),
    ]  # fmt: skip
    together = kernel.Arena()
    rows, errors = add_many(together, tensors)
    assert errors == {}
    assert sorted(rows) == list(range(len(tensors)))
    summaries = merging.take(together.drain(), np.array(rows))
    apart = kernel.Arena()
    assert [add(apart, tensor) for tensor in tensors] == list(range(len(tensors)))
    for got, wanted in zip(summaries, apart.drain(), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_tensor_that_cannot_be_read_does_not_cost_the_others() -> None:
    bad, arena = refused(), kernel.Arena()
    tensors = [each for tensor in bad.values() for each in (tensor, CUBE)]
    rows, errors = add_many(arena, tensors)
    assert rows[::2] == [-1] * len(bad)
    assert rows[1::2] == list(range(len(bad)))
    assert list(errors) == list(range(0, len(tensors), 2))
    assert all(word in str(error) for word, error in zip(bad, errors.values(), strict=True))
    assert len(arena) == len(bad)
    assert add_many(arena, []) == ([], {})

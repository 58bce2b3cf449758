"""Floating-point operations of a call, from its shapes. A multiplication and an addition count as two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Shape = Sequence[int]
Shapes = Sequence[Shape]  # of the call's tensor arguments, in order


def _linear(out: Shape, given: Shapes) -> int:
    return 2 * math.prod(out) * given[0][-1] + (math.prod(out) if len(given) > 2 else 0)


def _convolution(out: Shape, given: Shapes) -> int:
    return 2 * math.prod(out) * math.prod(given[1][1:]) + (math.prod(out) if len(given) > 2 else 0)


def _transposed(out: Shape, given: Shapes) -> int:
    return 2 * math.prod(given[0]) * math.prod(given[1][1:]) + (math.prod(out) if len(given) > 2 else 0)


def _matmul(out: Shape, given: Shapes) -> int:
    return 2 * math.prod(out) * given[0][-1]


def _addmm(out: Shape, given: Shapes) -> int:
    return 2 * math.prod(out) * given[1][-1] + math.prod(out)


def _attention(out: Shape, given: Shapes) -> int:
    query, key, value = given[:3]
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * query[-1] + 2 * scores * value[-1] + 5 * scores


def _recurrent(out: Shape, given: Shapes) -> int:
    """Matrices and biases of all layers and directions, once for each element of each sequence."""
    matrices = [shape for shape in given[1:] if len(shape) == 2]
    high = {shape[0] for shape in matrices}
    biases = [shape[0] for shape in given[1:] if len(shape) == 1 and shape[0] in high]
    return math.prod(given[0][:-1]) * (2 * sum(shape[0] * shape[1] for shape in matrices) + sum(biases))


def _elementwise(out: Shape, given: Shapes) -> int:
    return math.prod(out)


def _reduction(out: Shape, given: Shapes) -> int:
    return math.prod(given[0]) if given else 0


def _normalization(out: Shape, given: Shapes) -> int:
    return 5 * math.prod(out)


def _nothing(out: Shape, given: Shapes) -> int:
    return 0


_COUNTS: dict[Callable[[Shape, Shapes], int], str] = {
    _linear: "linear",
    _convolution: "conv1d conv2d conv3d",
    _transposed: "conv_transpose1d conv_transpose2d conv_transpose3d",
    _matmul: "matmul mm bmm mv dot chain_matmul",
    _addmm: "addmm baddbmm addmv addbmm",
    _attention: "scaled_dot_product_attention",
    _recurrent: "lstm gru rnn_tanh rnn_relu",
    _elementwise: """
        add sub mul div pow neg abs exp log sqrt rsqrt sin cos tanh sigmoid relu relu6 leaky_relu elu selu celu
        gelu silu mish hardtanh hardswish hardsigmoid softplus softsign threshold clamp where maximum minimum
        reciprocal square floor_divide remainder eq ne lt le gt ge erf log1p expm1 lerp addcmul addcdiv dropout
    """,
    _reduction: """
        sum mean max min prod norm var std argmax argmin amax amin logsumexp cumsum cumprod max_pool1d max_pool2d
        max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d mse_loss l1_loss
    """,
    _normalization: """
        batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax local_response_norm normalize
    """,
    _nothing: """
        view reshape permute transpose t T mT contiguous flatten unflatten squeeze unsqueeze expand expand_as
        getitem cat stack split chunk unbind select narrow clone detach to type float half bfloat16 data
        embedding zeros ones empty full arange zeros_like ones_like empty_like full_like new_zeros new_ones pad
        roll flip gather index_select repeat tile movedim swapaxes tensor as_strided masked_fill setitem copy
        fill zero tril triu rand randn input output constant alias update
    """,
}
_BY_NAME = {name: count for count, names in _COUNTS.items() for name in names.split()}


def flops(function: str, out: Shape, given: Shapes) -> int | None:
    """Operations of one call; None where nothing is known of the function."""
    count = _BY_NAME.get(function)
    try:
        return None if count is None else count(out, given)
    except IndexError:  # called in a way the formula does not know
        return None

"""torch.nn's layers, each in a small model of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.trace.zoo import ZOO, Calls, Case, numbers, specimen

_ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink,
    nn.LogSigmoid, nn.Sigmoid, nn.Tanh,
)  # fmt: skip
_LAYERS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "Softmax": lambda: (nn.Softmax(-1), (numbers(3, 4),)),
    "LogSoftmax": lambda: (nn.LogSoftmax(-1), (numbers(3, 4),)),
    "GLU": lambda: (nn.GLU(), (numbers(3, 4),)),
    "Bilinear": lambda: (nn.Bilinear(4, 3, 2), (numbers(5, 4), numbers(5, 3))),
    "Conv1d": lambda: (nn.Conv1d(2, 3, 3, padding=1), (numbers(2, 2, 8),)),
    "Conv2d": lambda: (nn.Conv2d(4, 4, 3, stride=2, groups=2), (numbers(2, 4, 8, 8),)),
    "Conv3d": lambda: (nn.Conv3d(1, 2, 3, padding="same"), (numbers(1, 1, 4, 4, 4),)),
    "Conv2dReflect": lambda: (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (numbers(1, 2, 6, 6),)),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(2, 3, 3, stride=2), (numbers(2, 2, 8),)),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(2, 3, 3, stride=2), (numbers(2, 2, 4, 4),)),
    "ConvTranspose3d": lambda: (nn.ConvTranspose3d(1, 2, 2), (numbers(1, 1, 3, 3, 3),)),
    "Unfold": lambda: (nn.Unfold(2), (numbers(1, 2, 4, 4),)),
    "Fold": lambda: (nn.Fold((4, 4), 2), (numbers(1, 8, 9),)),
    "MaxPool1d": lambda: (nn.MaxPool1d(2), (numbers(2, 2, 8),)),
    "MaxPool2d": lambda: (nn.MaxPool2d(2, return_indices=True), (numbers(2, 2, 8, 8),)),
    "MaxPool3d": lambda: (nn.MaxPool3d(2), (numbers(1, 1, 4, 4, 4),)),
    "AvgPool2d": lambda: (nn.AvgPool2d(2), (numbers(2, 2, 8, 8),)),
    "LPPool2d": lambda: (nn.LPPool2d(2, 2), (numbers(2, 2, 8, 8),)),
    "FractionalMaxPool2d": lambda: (nn.FractionalMaxPool2d(2, output_size=3), (numbers(1, 2, 8, 8),)),
    "AdaptiveAvgPool2d": lambda: (nn.AdaptiveAvgPool2d(3), (numbers(1, 2, 8, 8),)),
    "AdaptiveMaxPool1d": lambda: (nn.AdaptiveMaxPool1d(3), (numbers(1, 2, 8),)),
    "ReflectionPad2d": lambda: (nn.ReflectionPad2d(1), (numbers(1, 1, 4, 4),)),
    "CircularPad1d": lambda: (nn.CircularPad1d(1), (numbers(1, 1, 4),)),
    "ZeroPad2d": lambda: (nn.ZeroPad2d(1), (numbers(1, 1, 4, 4),)),
    "BatchNorm1d": lambda: (nn.BatchNorm1d(4), (numbers(6, 4),)),
    "BatchNorm2d": lambda: (nn.BatchNorm2d(2, momentum=None), (numbers(3, 2, 4, 4),)),
    "BatchNorm3d": lambda: (nn.BatchNorm3d(2, track_running_stats=False), (numbers(3, 2, 2, 2, 2),)),
    "InstanceNorm2d": lambda: (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (numbers(3, 2, 4, 4),)),
    "GroupNorm": lambda: (nn.GroupNorm(2, 4), (numbers(3, 4, 5),)),
    "LayerNorm": lambda: (nn.LayerNorm(4), (numbers(3, 4),)),
    "RMSNorm": lambda: (nn.RMSNorm(4), (numbers(3, 4),)),
    "LocalResponseNorm": lambda: (nn.LocalResponseNorm(2), (numbers(2, 4, 5, 5),)),
    "Dropout": lambda: (nn.Dropout(0.5), (numbers(3, 4),)),
    "Dropout2dInPlace": lambda: (nn.Dropout2d(0.5, inplace=True), (numbers(3, 4, 2, 2),)),
    "AlphaDropout": lambda: (nn.AlphaDropout(0.5), (numbers(3, 4),)),
    "FeatureAlphaDropout": lambda: (nn.FeatureAlphaDropout(0.5), (numbers(3, 4, 2),)),
    "Embedding": lambda: (nn.Embedding(9, 4, padding_idx=0), (torch.tensor([[1, 2, 0]]),)),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(9, 4), (torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2]))),
    "RNN": lambda: (nn.RNN(4, 5, num_layers=2), (numbers(3, 2, 4),)),
    "GRU": lambda: (nn.GRU(4, 5, bidirectional=True, batch_first=True), (numbers(2, 3, 4),)),
    "LSTM": lambda: (nn.LSTM(4, 5, num_layers=2, dropout=0.5), (numbers(3, 2, 4),)),
    "LSTMProjected": lambda: (nn.LSTM(4, 5, proj_size=3), (numbers(3, 2, 4),)),
    "LSTMCell": lambda: (nn.LSTMCell(4, 5), (numbers(2, 4),)),
    "GRUCell": lambda: (nn.GRUCell(4, 5), (numbers(2, 4),)),
    "MultiheadAttention": lambda: (nn.MultiheadAttention(8, 2, batch_first=True), (numbers(2, 3, 8),) * 3),
    "MultiheadCrossAttention": lambda: (nn.MultiheadAttention(8, 2), (numbers(3, 2, 8), *[numbers(4, 2, 8)] * 2)),
    "TransformerEncoderLayer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (numbers(2, 3, 8),)),
    "TransformerDecoderLayer": lambda: (nn.TransformerDecoderLayer(8, 2, 16), (numbers(3, 2, 8), numbers(4, 2, 8))),
    "Transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (numbers(2, 3, 8), numbers(2, 4, 8))),
    "PixelShuffle": lambda: (nn.PixelShuffle(2), (numbers(1, 4, 3, 3),)),
    "ChannelShuffle": lambda: (nn.ChannelShuffle(2), (numbers(1, 4, 3, 3),)),
    "Upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (numbers(1, 2, 4, 4),)),
    "CosineSimilarity": lambda: (nn.CosineSimilarity(), (numbers(3, 4), numbers(3, 4) + 1)),
    "PairwiseDistance": lambda: (nn.PairwiseDistance(), (numbers(3, 4), numbers(3, 4) + 1)),
    "Flatten": lambda: (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 4))), (numbers(3, 2, 4),)),
    "CrossEntropyLoss": lambda: (nn.CrossEntropyLoss(label_smoothing=0.1), (numbers(3, 4), torch.tensor([0, 1, 3]))),
    "CTCLoss": lambda: (
        nn.CTCLoss(),
        (numbers(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 4]]), torch.tensor([6, 6]), torch.tensor([2, 2])),
    ),
    "BCEWithLogitsLoss": lambda: (nn.BCEWithLogitsLoss(), (numbers(3, 4), torch.ones(3, 4))),
    "HuberLoss": lambda: (nn.HuberLoss(), (numbers(3, 4), torch.zeros(3, 4))),
    "KLDivLoss": lambda: (nn.KLDivLoss(reduction="batchmean"), (numbers(3, 4), torch.full((3, 4), 0.25))),
    "TripletMarginLoss": lambda: (nn.TripletMarginLoss(), (numbers(3, 4), numbers(3, 4) + 1, numbers(3, 4) * 2)),
    "AdaptiveLogSoftmax": lambda: (
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]),
        (numbers(4, 8), torch.tensor([1, 6, 12, 19])),
    ),
}  # fmt: skip


def _add(name: str, make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]) -> None:
    def case() -> Case:
        torch.manual_seed(0)
        layer, args = make()
        return Case(layer, args)

    ZOO[f"nn.{name}"] = case


for _kind in _ACTIVATIONS:
    _add(_kind.__name__, lambda kind=_kind: (nn.Sequential(nn.Linear(4, 4), kind()), (numbers(3, 4),)))  # type: ignore[misc]
for _name, _make in _LAYERS.items():
    _add(_name, _make)


@specimen
def packed_sequences() -> Case:
    def forward(m: Any, x: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = m.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0].sum(1) + hidden[0]

    return Case(Calls(forward, lstm=nn.LSTM(4, 5, batch_first=True)), (numbers(3, 6, 4), torch.tensor([4, 6, 2])))


@specimen
def encoder_with_padding_mask() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    return Case(nn.TransformerEncoder(layer, 2), (numbers(2, 3, 8),), {"src_key_padding_mask": mask})


@specimen
def encoder_frozen() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(False)
    return Case(Calls(lambda m, x: m.encoder(x) * 2, encoder=nn.TransformerEncoder(layer, 2)), (numbers(2, 3, 8),))


@specimen
def scaled_dot_product_attention() -> Case:
    attend = nn.functional.scaled_dot_product_attention
    return Case(lambda q: attend(q, q, q, is_causal=True) + attend(q, q, q, dropout_p=0.3), (numbers(2, 2, 3, 4),))

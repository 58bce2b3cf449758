"""Architectures of the transformers library, made small from their configurations, without weights."""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.trace.zoo import ZOO, Case, numbers

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched

_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "embed_dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "num_mel_bins", "patch_size"), 8),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "max_source_positions", "max_target_positions"), 64),
    "num_key_value_heads": 2, "decoder_attention_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "image_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "state_size": 4,
    "type_vocab_size": 2, "encoder_embed_dim": 16, "decoder_embed_dim": 16, "ffn_hidden_size": 32,
}  # fmt: skip
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
_TEXT = """
    albert bart bert big_bird bitnet bloom camembert canine clip_text_model cohere convbert ctrl deberta deberta-v2
    distilbert electra esm falcon falcon_mamba fnet gemma gemma2 gemma3_text glm gpt2 gpt_bigcode gpt_neox gpt_oss
    granitemoe ibert jetmoe lfm2 llama llama4_text longformer longt5 mamba mamba2 marian mbart mistral mixtral
    mobilebert modernbert mpnet mpt mra nystromformer olmoe opt pegasus phi phi3 prophetnet qwen2 qwen2_moe qwen3
    recurrent_gemma reformer roberta roformer rwkv squeezebert stablelm starcoder2 switch_transformers t5 tapas umt5
    xglm xlm xlnet yoso
""".split()  # noqa: SIM905  a table to read
_VISION: dict[str, dict[str, Any]] = {
    "beit": {},
    "bit": {**_STAGES, "embedding_size": 8, "num_groups": 4},
    "clip_vision_model": {},
    "convnext": _STAGES,
    "convnextv2": _STAGES,
    "deit": {},
    "dinov2": {},
    "dpt": {},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128},
    "focalnet": {"embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16], "focal_levels": [1, 1], "patch_size": 4},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "poolformer": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_encoder_blocks": 4},
    "pvt_v2": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2]},
    "regnet": {**_STAGES, "embedding_size": 8, "groups_width": 8},
    "resnet": {**_STAGES, "embedding_size": 8},
    "segformer": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2]},
    "siglip_vision_model": {},
    "swin": {"embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 2, "patch_size": 4},
    "swinv2": {"embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 2, "patch_size": 4},
    "vit": {},
    "vit_mae": {},
    "vitdet": {},
    "yolos": {"image_size": [32, 32], "num_detection_tokens": 4},
}  # fmt: skip
_CONVOLUTIONS = {"conv_dim": [8, 8], "conv_kernel": [4, 4], "conv_stride": [2, 2], "num_feat_extract_layers": 2}
_AUDIO: dict[str, dict[str, Any]] = {
    "wav2vec2": {**_CONVOLUTIONS, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    "hubert": {**_CONVOLUTIONS, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    "wavlm": {**_CONVOLUTIONS, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_buckets": 8},
    "sew": {**_CONVOLUTIONS, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "squeeze_factor": 2},
    "encodec": {"num_filters": 2, "codebook_size": 8, "codebook_dim": 4, "hidden_size": 4, "num_residual_layers": 1},
    "moonshine": {},
}


def _model(kind: str, **changes: Any) -> Any:  # Any: transformers' models share no typed base
    from transformers import AutoConfig, AutoModel

    kept = AutoConfig.for_model(kind)
    known = kept.to_dict()
    plain = {
        name: value for name, value in _SMALL.items() if name in known and isinstance(known[name], (int, type(None)))
    }
    torch.manual_seed(0)
    return AutoModel.from_config(type(kept)(**{**plain, **changes}))  # type: ignore[no-untyped-call]


def _ids(length: int = 7) -> torch.Tensor:
    return torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(5))


def _text(kind: str) -> Case:
    changes: dict[str, dict[str, Any]] = {
        "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1},
        "reformer": {
            "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 2, "feed_forward_size": 32,
            "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "attention_head_size": 8,
        },
    }  # fmt: skip
    model = _model(kind, **changes.get(kind, {}))
    kwargs = {"input_ids": _ids(8 if kind in ("reformer",) else 7)}
    if getattr(model.config, "is_encoder_decoder", False):
        kwargs["decoder_input_ids"] = _ids(5)
    return Case(model, (), kwargs, only_eval=kind == "reformer")


def _vision(kind: str, changes: dict[str, Any]) -> Case:
    return Case(_model(kind, **changes), (), {"pixel_values": numbers(2, 3, 32, 32)})


def _audio(kind: str, changes: dict[str, Any]) -> Case:
    shape = (1, 1, 320) if kind == "encodec" else (1, 1600 if kind == "moonshine" else 320)
    model = _model(kind, **changes)
    kwargs = {"input_values": numbers(*shape)}
    if model.config.is_encoder_decoder:
        kwargs["decoder_input_ids"] = _ids(5)[:1]
    return Case(model, (), kwargs)


def _whisper() -> Case:
    model = _model("whisper", max_source_positions=8)
    return Case(model, (), {"input_features": numbers(1, 8, 16), "decoder_input_ids": _ids(5)[:1]})


def _clip() -> Case:
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config={**sizes, "image_size": 32, "patch_size": 16}, projection_dim=8)
    return Case(
        CLIPModel(config), (), {"input_ids": _ids(), "pixel_values": numbers(1, 3, 32, 32), "return_loss": False}
    )


def _generating() -> Case:
    """A cache that grows from token to token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32))  # type: ignore[no-untyped-call]

    def forward(ids: torch.Tensor) -> Any:
        cache = None
        for _ in range(3):
            result = model(ids if cache is None else ids[:, -1:], past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            ids = torch.cat([ids, result.logits[:, -1:].argmax(-1)], dim=1)
        return result.logits, ids

    return Case(forward, (_ids(),))


def _vilt() -> Case:
    return Case(_model("vilt"), (), {"input_ids": _ids()[:1], "pixel_values": numbers(1, 3, 32, 32)})


for _kind in _TEXT:
    ZOO[f"text.{_kind}"] = lambda kind=_kind: _text(kind)  # type: ignore[misc]
for _kind, _changes in _VISION.items():
    ZOO[f"vision.{_kind}"] = lambda kind=_kind, changes=_changes: _vision(kind, changes)  # type: ignore[misc]
for _kind, _changes in _AUDIO.items():
    ZOO[f"audio.{_kind}"] = lambda kind=_kind, changes=_changes: _audio(kind, changes)  # type: ignore[misc]
ZOO["audio.whisper"] = _whisper
ZOO["both.clip"] = _clip
ZOO["both.vilt"] = _vilt
ZOO["text.gpt2_with_cache"] = _generating

"""Architectures of timm and torchvision, by name, small, without weights."""

from __future__ import annotations

from typing import Any

from tests.trace.vision import library
from tests.trace.zoo import ZOO, Case, numbers

_SMALL_VIT = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2}
_SMALL_SWIN = {"depths": (1, 1, 2, 1), "embed_dim": 16, "num_heads": (1, 2, 2, 2)}
_SMALL_CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16)}
_TIMM_PLAIN = """
    resnet18 resnet10t seresnext26t_32x4d skresnet18 resnest14d efficientnet_lite0 efficientnet_b0 mobilenetv2_035
    mobilenetv3_small_050 mobilenetv4_conv_small_035 mnasnet_small fbnetc_100 lcnet_035 tinynet_e ghostnet_050 mixnet_s
    repvgg_a0 regnetx_002 regnety_002 inception_next_atto cspresnet50 darknet53 dla34 dpn48b hrnet_w18_small rexnet_100
    starnet_s1 hgnet_tiny ese_vovnet19b_slim gernet_s mambaout_femto
""".split()  # noqa: SIM905  a table to read
_TIMM: dict[str, dict[str, Any]] = {  # side of the image, where it is not 32, and arguments of the model
    "beit_base_patch16_224": _SMALL_VIT,
    "botnet26t_256": {"side": 64, "img_size": 64},
    "cait_xxs24_224": _SMALL_VIT,
    "coat_lite_tiny": {"img_size": 32},
    "coatnet_pico_rw_224": {"side": 64, "img_size": 64},
    "convit_tiny": {"img_size": 32, "depth": 2},
    "convnext_atto": _SMALL_CONVNEXT,
    "convnextv2_atto": _SMALL_CONVNEXT,
    "davit_tiny": {"side": 64, "depths": (1, 1, 1, 1)},
    "deit_tiny_distilled_patch16_224": _SMALL_VIT,
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2, 2)},
    "edgenext_xx_small": {"side": 64},
    "efficientvit_b0": {"side": 64},
    "eva02_tiny_patch14_224": {**_SMALL_VIT, "side": 28, "img_size": 28},
    "fastvit_t8": {"side": 64},
    "focalnet_tiny_srf": {"side": 64},
    "gmlp_ti16_224": {"img_size": 32},
    "hiera_tiny_224": {"side": 64, "img_size": 64},
    "inception_v3": {"side": 75},
    "lambda_resnet26t": {"side": 64},
    "levit_128s": {"side": 64, "img_size": 64},
    "maxvit_rmlp_pico_rw_256": {"side": 64, "img_size": 64},
    "mixer_s32_224": {"img_size": 32},
    "mobilevit_xxs": {"side": 64},
    "mobilevitv2_050": {"side": 64},
    "nfnet_l0": {},
    "pit_ti_224": {"side": 64, "img_size": 64},
    "poolformer_s12": {"layers": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 16)},
    "pvt_v2_b0": {"side": 64, "depths": (1, 1, 1, 1)},
    "res2net50_14w_8s": {"layers": [1, 1, 1, 1]},
    "resmlp_12_224": {"img_size": 32},
    "samvit_base_patch16_224": _SMALL_VIT,
    "sequencer2d_s": {"img_size": 32},
    "swiftformer_xs": {"side": 64},
    "swin_tiny_patch4_window7_224": {**_SMALL_SWIN, "img_size": 32, "window_size": 4},
    "swinv2_tiny_window8_256": {**_SMALL_SWIN, "side": 64, "img_size": 64, "window_size": 2},
    "tnt_s_legacy_patch16_224": {"img_size": 32, "depth": 2},
    "twins_svt_small": {"side": 64, "img_size": 64, "depths": (1, 1, 1, 1)},
    "visformer_tiny": {"img_size": 32},
    "vit_tiny_patch16_224": _SMALL_VIT,
    "xception41": {"side": 64},
    "xcit_nano_12_p16_224": {"img_size": 32, "depth": 2},
}
_TORCHVISION: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("convnext_tiny", "densenet121", "efficientnet_b0", "mnasnet0_5", "mobilenet_v2")},
    **{name: {} for name in ("mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d")},
    **{name: {} for name in ("shufflenet_v2_x0_5", "swin_t", "swin_v2_t")},
    "alexnet": {"side": 64},
    "googlenet": {"side": 64, "init_weights": False},
    "inception_v3": {"side": 75, "init_weights": False, "aux_logits": False},
    "squeezenet1_0": {"side": 64},
    "vgg11": {"init_weights": False},
    "vit_b_16": {"image_size": 32},
}
_SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")
_REGIONS = {"box_score_thresh": 0.0, "rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 8}
_ONE_SHOT = {"score_thresh": 0.0, "topk_candidates": 10}
_DETECTION: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": _REGIONS,
    "fcos_resnet50_fpn": _ONE_SHOT,
    "maskrcnn_resnet50_fpn": {**_REGIONS, "rpn_post_nms_top_n_test": 3, "box_detections_per_img": 2},
    "retinanet_resnet50_fpn": _ONE_SHOT,
}
_VIDEO = ("mc3_18", "r2plus1d_18", "r3d_18", "swin3d_t")


def _timm(name: str, side: int = 32, **arguments: Any) -> Case:
    model = library("timm").create_model(name, pretrained=False, num_classes=4, **arguments)
    return Case(model, (numbers(2, 3, side, side),))


def _torchvision(name: str, side: int = 32, **arguments: Any) -> Case:
    model = library("torchvision.models").get_model(name, weights=None, num_classes=4, **arguments)
    return Case(model, (numbers(2, 3, side, side),))


def _segmentation(name: str) -> Case:
    model = library("torchvision.models").get_model(name, weights=None, weights_backbone=None, num_classes=3)
    return Case(model, (numbers(2, 3, 32, 32),))


def _detection(name: str, **arguments: Any) -> Case:
    """Finds boxes in images of different sizes; in training it would need to be told where they are."""
    sizes = {"num_classes": 3, "min_size": 32, "max_size": 48, **arguments}
    model = library("torchvision.models").get_model(name, weights=None, weights_backbone=None, **sizes)
    return Case(model, ([numbers(3, 32, 32).sigmoid(), numbers(3, 32, 40).sigmoid()],), only_eval=True)


def _video(name: str) -> Case:
    model = library("torchvision.models").get_model(name, weights=None, num_classes=4)
    return Case(model, (numbers(2, 3, 4, 32, 32),))


def _raft() -> Case:
    """Optical flow, refined in a loop."""
    model = library("torchvision.models").get_model("raft_small", weights=None)
    return Case(model, (numbers(1, 3, 128, 128), numbers(1, 3, 128, 128) + 0.1), {"num_flow_updates": 2})


for _name in _TIMM_PLAIN:
    ZOO[f"timm.{_name}"] = lambda name=_name: _timm(name)  # type: ignore[misc]
for _name, _arguments in _TIMM.items():
    ZOO[f"timm.{_name}"] = lambda name=_name, arguments=_arguments: _timm(name, **arguments)  # type: ignore[misc]
for _name, _arguments in _TORCHVISION.items():
    ZOO[f"torchvision.{_name}"] = lambda name=_name, given=_arguments: _torchvision(name, **given)  # type: ignore[misc]
for _name in _SEGMENTATION:
    ZOO[f"torchvision.{_name}"] = lambda name=_name: _segmentation(name)  # type: ignore[misc]
for _name, _arguments in _DETECTION.items():
    ZOO[f"torchvision.{_name}"] = lambda name=_name, given=_arguments: _detection(name, **given)  # type: ignore[misc]
for _name in _VIDEO:
    ZOO[f"torchvision.{_name}"] = lambda name=_name: _video(name)  # type: ignore[misc]
ZOO["torchvision.raft_small"] = _raft

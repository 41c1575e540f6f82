"""Small models of transformers, diffusers, timm, torchvision and peft, with random weights.

Each is its library's class with few and narrow layers. What a library does besides its layers (masks, tables of
positions, caches, routes to experts) is as in the large one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Callable[[int], dict[str, Any]]
Made = tuple[nn.Module, Inputs]
GPU = "cuda"
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
KV, EXPERTS = {"num_key_value_heads": 2}, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def ids(n: int = 12) -> Tensor:
    return torch.randint(5, 99, (2, n), device=GPU)


def image(channels: int = 3, side: int = 32) -> Tensor:
    return torch.randn(2, channels, side, side, device=GPU)


def masked(i: int) -> dict[str, Any]:
    return {"input_ids": ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long, device=GPU)}


def pixels(i: int) -> dict[str, Any]:
    return {"pixel_values": image()}


def both(i: int) -> dict[str, Any]:
    return {"input_ids": ids(), **pixels(i)}


def translated(i: int) -> dict[str, Any]:
    return {"input_ids": ids(), "decoder_input_ids": ids(7)}


def heard(i: int) -> dict[str, Any]:
    return {"input_features": torch.randn(2, 16, 60, device=GPU), "decoder_input_ids": ids(7)}


_TWO = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_OF_GPT2 = {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}
_STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}

TRANSFORMERS: dict[str, tuple[str, Inputs, dict[str, Any]]] = {
    **{
        name: (f"{name}ForCausalLM", masked, {**TEXT, **KV})
        for name in ("Llama", "Qwen2", "Mistral", "Phi", "Olmo", "StableLm", "Starcoder2", "Cohere", "Granite")
    },
    **{name: (f"{name}ForCausalLM", masked, {**TEXT, **KV, "head_dim": 8}) for name in ("Qwen3", "Gemma", "Gemma2")},
    "Phi3": ("Phi3ForCausalLM", masked, {**TEXT, **KV, "pad_token_id": 0}),
    "GPTNeoX": ("GPTNeoXForCausalLM", masked, TEXT),
    "GPT2": ("GPT2LMHeadModel", masked, {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "OPT": (
        "OPTForCausalLM",
        masked,
        {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    ),
    "Bloom": ("BloomForCausalLM", masked, _OF_GPT2),
    "Mixtral": ("MixtralForCausalLM", masked, {**TEXT, **KV, "num_local_experts": 4}),
    "Qwen2Moe": (
        "Qwen2MoeForCausalLM",
        masked,
        {**TEXT, **KV, **EXPERTS, "shared_expert_intermediate_size": 32},
    ),
    "Mamba": (
        "MambaForCausalLM",
        lambda i: {"input_ids": ids()},
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    ),
    **{name: (f"{name}ForMaskedLM", masked, TEXT) for name in ("Bert", "Roberta", "MPNet")},
    "Electra": ("ElectraForMaskedLM", masked, {**TEXT, "embedding_size": 32}),
    "Albert": ("AlbertForMaskedLM", masked, {**TEXT, "embedding_size": 16}),
    "DistilBert": (
        "DistilBertForMaskedLM",
        masked,
        {"vocab_size": 99, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    ),
    "DebertaV2": (
        "DebertaV2ForMaskedLM",
        masked,
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16},
    ),
    "ModernBert": (
        "ModernBertForMaskedLM",
        masked,
        {
            **TEXT,
            **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 1),
        },
    ),
    "T5": (
        "T5ForConditionalGeneration",
        translated,
        {"vocab_size": 99, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4},
    ),
    "Bart": (
        "BartForConditionalGeneration",
        translated,
        {"vocab_size": 99, "d_model": 32, **_TWO, "max_position_embeddings": 64},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        heard,
        {"vocab_size": 99, "d_model": 32, **_TWO, "num_mel_bins": 16, "max_source_positions": 30}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "Wav2Vec2": (
        "Wav2Vec2ForCTC",
        lambda i: {"input_values": torch.randn(2, 2000, device=GPU)},
        {**TEXT, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
        | {"num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
        | {"mask_time_prob": 0.0, "layerdrop": 0.0},
    ),
    **{name: (f"{name}Model", pixels, VISION) for name in ("ViT", "Dinov2", "DeiT", "Beit")},
    "SiglipVision": ("SiglipVisionModel", pixels, VISION),
    "Siglip": ("SiglipModel", both, {"text_config": TEXT, "vision_config": VISION}),
    "CLIP": (
        "CLIPModel",
        both,
        {"text_config": {**TEXT, "eos_token_id": 98}, "vision_config": VISION, "projection_dim": 16},
    ),
    "ConvNext": ("ConvNextModel", pixels, {**_STAGES, "drop_path_rate": 0.0}),
    "ResNet": ("ResNetModel", pixels, {**_STAGES, "embedding_size": 8, "layer_type": "basic"}),
    "Swin": (
        "SwinModel",
        pixels,
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
        | {"drop_path_rate": 0.0},
    ),
    "Segformer": (
        "SegformerForSemanticSegmentation",
        lambda i: {"pixel_values": image(side=64)},
        {**_STAGES, "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16, "drop_path_rate": 0.0},
    ),
    "SamVision": (
        "SamVisionModel",
        pixels,
        {
            **VISION,
            "output_channels": 16,
            "window_size": 2,
            "global_attn_indexes": [1],
            "num_pos_feats": 8,
            "mlp_dim": 64,
        },
    ),
    "PatchTST": (
        "PatchTSTForPrediction",
        lambda i: {"past_values": torch.randn(2, 32, 3, device=GPU)},
        {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4}
        | {"d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64},
    ),
    "SpeechT5HifiGan": (
        "SpeechT5HifiGan",
        lambda i: {"spectrogram": torch.randn(2, 12, 8, device=GPU)},
        {
            "model_in_dim": 8,
            "upsample_initial_channel": 16,
            "upsample_rates": [4, 4],
            "upsample_kernel_sizes": [8, 8],
        },
    ),
}

_CROSS_FIRST = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "cross_attention_dim": 16,
    "norm_num_groups": 4,
}
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2}


def _noised(i: int, **more: Any) -> dict[str, Any]:
    states = {"encoder_hidden_states": torch.randn(2, 7, 16, device=GPU)}
    return {"sample": image(4, 16), "timestep": torch.tensor(900 - 50 * i, device=GPU), **states, **more}


def _patched(i: int, n_text: int, **more: Any) -> dict[str, Any]:
    states = {"encoder_hidden_states": torch.randn(2, 7, n_text, device=GPU)}
    return {"hidden_states": image(4, 16), "timestep": torch.tensor([900 - 50 * i] * 2, device=GPU), **states, **more}


DIFFUSERS: dict[str, tuple[str, Inputs, dict[str, Any]]] = {
    "UNet": ("UNet2DConditionModel", _noised, {**_CROSS_FIRST, "sample_size": 16, "attention_head_dim": 4}),
    "UNet, a step as an int": (
        "UNet2DConditionModel",
        lambda i: {**_noised(i), "timestep": 900 - 50 * i},
        {**_CROSS_FIRST, "sample_size": 16, "attention_head_dim": 4},
    ),
    "UNet of SDXL": (
        "UNet2DConditionModel",
        lambda i: _noised(
            i,
            added_cond_kwargs={
                "text_embeds": torch.randn(2, 16, device=GPU),
                "time_ids": torch.randn(2, 6, device=GPU),
            },
        ),
        {**_CROSS_FIRST, "sample_size": 16, "attention_head_dim": (2, 4), "use_linear_projection": True}
        | {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
        | {"projection_class_embeddings_input_dim": 64},
    ),
    "ControlNet": (
        "ControlNetModel",
        lambda i: _noised(i, controlnet_cond=image(3, 32)),
        {name: value for name, value in _CROSS_FIRST.items() if name != "up_block_types"}
        | {"attention_head_dim": 4, "conditioning_embedding_out_channels": (8, 16)},
    ),
    "UNet2D": (
        "UNet2DModel",
        lambda i: {"sample": image(3, 16), "timestep": torch.tensor([900 - 50 * i] * 2, device=GPU)},
        {"sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
        | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
    ),
    "AutoencoderKL": (
        "AutoencoderKL",
        lambda i: {"sample": image()},
        {"block_out_channels": (8, 16), "norm_num_groups": 4}
        | {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    ),
    "DiT": (
        "DiTTransformer2DModel",
        lambda i: {
            "hidden_states": image(4, 16),
            "timestep": torch.tensor([500 - i] * 2, device=GPU),
            "class_labels": torch.tensor([1, 2], device=GPU),
        },
        {**_HEADS, "sample_size": 16, "patch_size": 2, "norm_num_groups": 4},
    ),
    "SD3": (
        "SD3Transformer2DModel",
        lambda i: _patched(i, 32, pooled_projections=torch.randn(2, 32, device=GPU)),
        {**_HEADS, "sample_size": 16, "patch_size": 2, "caption_projection_dim": 16, "joint_attention_dim": 32}
        | {"pooled_projection_dim": 32, "out_channels": 4},
    ),
    "PixArt": (
        "PixArtTransformer2DModel",
        lambda i: _patched(i, 24, added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
        {**_HEADS, "cross_attention_dim": 16, "sample_size": 16, "patch_size": 2, "caption_channels": 24}
        | {"norm_num_groups": 4, "use_additional_conditions": False},
    ),
    "Flux": (
        "FluxTransformer2DModel",
        lambda i: {
            "hidden_states": torch.randn(1, 16, 4, device=GPU),
            "encoder_hidden_states": torch.randn(1, 7, 32, device=GPU),
            "pooled_projections": torch.randn(1, 32, device=GPU),
            "timestep": torch.tensor([0.9 - 0.1 * i], device=GPU),
            "img_ids": torch.randn(16, 3, device=GPU).round(),
            "txt_ids": torch.zeros(7, 3, device=GPU),
            "guidance": torch.tensor([3.5], device=GPU),
        },
        {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16}
        | {"num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32}
        | {"axes_dims_rope": [4, 4, 8], "guidance_embeds": True},
    ),
    "Wan": (
        "WanTransformer3DModel",
        lambda i: {
            "hidden_states": torch.randn(1, 4, 2, 16, 16, device=GPU),
            "timestep": torch.tensor([900 - 50 * i], device=GPU),
            "encoder_hidden_states": torch.randn(1, 7, 16, device=GPU),
        },
        {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4}
        | {"out_channels": 4, "text_dim": 16, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 32},
    ),
    "QwenImage": (
        "QwenImageTransformer2DModel",
        lambda i: {
            "hidden_states": torch.randn(1, 16, 16, device=GPU),
            "encoder_hidden_states": torch.randn(1, 7, 16, device=GPU),
            "encoder_hidden_states_mask": torch.ones(1, 7, dtype=torch.long, device=GPU),
            "timestep": torch.tensor([0.9 - 0.1 * i], device=GPU),
            "img_shapes": [(1, 4, 4)],
        },
        {"patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16}
        | {"num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": (8, 4, 4)},
    ),
}

TIMM = """
resnet18 efficientnet_b0 mobilenetv3_small_100 convnext_atto vit_tiny_patch16_224 swin_tiny_patch4_window7_224
deit_tiny_patch16_224 regnety_002 densenet121 mixer_s32_224 ghostnet_100 coatnet_pico_rw_224 maxvit_pico_rw_256
edgenext_xx_small repvgg_a0 hrnet_w18_small levit_128s poolformerv2_s12 volo_d1_224 xcit_nano_12_p16_224 fastvit_t8
efficientformerv2_s0 inception_v3 dla34 nfnet_l0 resnest14d cait_xxs24_224 tinynet_a eva02_tiny_patch14_224
vit_small_patch16_dinov3
""".split()
TORCHVISION = "squeezenet1_0 shufflenet_v2_x0_5 mnasnet0_5 vgg11_bn alexnet resnext50_32x4d r3d_18 ssdlite320".split()
BF16 = ("Llama", "Bert", "Mixtral", "Qwen2Moe")
"""Of transformers, in bfloat16 besides: experts are one product there."""


def names() -> Iterator[str]:
    for library, table in (("transformers", TRANSFORMERS), ("diffusers", DIFFUSERS)):
        yield from (f"{library}: {name}" for name in table)
    yield from (f"transformers: {name}, bfloat16" for name in BF16)
    yield "peft: Llama with LoRA"
    yield from (f"timm: {name}" for name in TIMM)
    yield from (f"torchvision: {name}" for name in TORCHVISION)


def made(name: str) -> Made:
    """The model on the device, and what gives it the inputs of its i-th call.

    Raises:
        ImportError: the library is not installed.
    """
    library, _, name = name.partition(": ")
    model, inputs = _MAKERS[library](name)
    return model.to(GPU), inputs


def _transformers(name: str) -> Made:
    import transformers

    name, _, kind = name.partition(", ")
    of, inputs, sizes = TRANSFORMERS[name]
    kind_of_config = of.split("For")[0].removesuffix("Model").removesuffix("LMHead") + "Config"
    config = getattr(transformers, kind_of_config)(**sizes)
    config.use_cache = False
    model = getattr(transformers, of)(config)
    return (model.bfloat16() if kind else model), inputs


def _diffusers(name: str) -> Made:
    import diffusers

    of, inputs, sizes = DIFFUSERS[name]
    return getattr(diffusers, of)(**sizes), inputs


def _peft(name: str) -> Made:
    from peft import LoraConfig, get_peft_model

    model, inputs = _transformers("Llama")
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)), inputs


def _timm(name: str) -> Made:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10)
    side = model.pretrained_cfg["input_size"][-1]
    return model, lambda i: {"x": image(side=side)}


def _torchvision(name: str) -> Made:
    from torchvision import models

    if name == "r3d_18":
        return models.video.r3d_18(num_classes=5), lambda i: {"x": torch.randn(2, 3, 4, 32, 32, device=GPU)}
    if name == "ssdlite320":
        of = models.detection.ssdlite320_mobilenet_v3_large(weights_backbone=None, num_classes=5)
        return of, lambda i: {"images": [*torch.rand(2, 3, 64, 64, device=GPU)]}
    return getattr(models, name)(num_classes=10), lambda i: {"x": image(side=96)}


_MAKERS: dict[str, Callable[[str], Made]] = {
    "transformers": _transformers,
    "diffusers": _diffusers,
    "peft": _peft,
    "timm": _timm,
    "torchvision": _torchvision,
}

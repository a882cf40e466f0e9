"""Small models of every architecture for which transformers has a tensor-parallel plan."""
import re
import warnings

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

LARGEST = 60_000_000  # parameters; protects the machine from configs with sizes that the patterns below do not match

# The first pattern that matches the name of an integer field decides its value.
SIZES = [
    (r"(num_key_value_heads|num_kv_heads|num_global_key_value_heads|swa_num_key_value_heads)", 2),
    (r"(swa_)?num_attention_heads|num_heads|n_heads?|encoder_attention_heads|decoder_attention_heads|attention_heads", 4),
    (r"num_hidden_layers|num_layers|n_layers?|depth|encoder_layers|decoder_layers", 2),
    (r"hidden_size|d_model|n_embd|embed_dim|projection_dim|out_hidden_size|text_hidden_size|proj_out_size", 64),
    (r"moe_intermediate_size|expert_intermediate_size|shared_expert_intermediate_size|shared_intermediate_size", 48),
    (r"intermediate_size(_mlp)?|ffn_dim|ffn_hidden_size|mlp_hidden_size|encoder_ffn_dim|decoder_ffn_dim", 96),
    (r"vocab_size", 160),
    (r"vocab_size_per_layer_input", 160),
    (r"hidden_size_per_layer_input", 16),
    (r"(swa_|global_|index_)?head_dim|v_head_dim|(swa_|global_)?v_head_dim|qk_nope_head_dim", 16),
    (r"qk_rope_head_dim", 8),
    (r"qk_head_dim", 24),
    (r"q_lora_rank", 32),
    (r"kv_lora_rank", 16),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_moe_experts|expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|experts_per_token|num_selected_experts", 2),
    (r"n_group|topk_group|num_expert_group|num_limited_groups", 1),
    (r"first_k_dense_replace", 1),
    (r"max_position_embeddings", 64),
]

# Sizes of models whose config has none by default, or needs other ones than the patterns give.
OWN_SIZES = {
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
}


def shrunk_value(name, value):
    if name.endswith("token_id") or name.endswith("token_index"):
        return min(value, 150) if value >= 0 else value
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size)
    return value


def shrink(fields):
    """Returns `fields` of a config with small sizes. Lists with an entry per layer are shortened to the number of layers."""
    layers = {v for k, v in fields.items() if isinstance(k, str) and re.fullmatch(SIZES[2][0], k) and isinstance(v, int)}
    small = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            pass  # a label table
        elif name == "per_layer_config":
            value = {}  # it refers to layers that the small model does not have
        elif isinstance(value, dict):
            value = shrink(value)
        elif isinstance(value, list) and len(value) in layers and len(value) > 2:
            # Keep the last two layers, because hybrids end with a full-attention or expert layer.
            value = value[-2:]
        elif isinstance(value, list) and name.endswith("token_id"):
            value = [min(each, 150) for each in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            value = shrunk_value(name, value)
        small[name] = value
    if "mrope_section" in (small.get("rope_parameters") or {}):
        small["rope_parameters"]["mrope_section"] = [2, 3, 3]
    return small


def planned_architectures():
    """Returns the model types with a tensor-parallel plan, each with the name of its class."""
    classes = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    classes.update(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    found = {}
    for model_type in sorted(classes):
        try:
            config = CONFIG_MAPPING[model_type]()
            text = config.get_text_config()
        except Exception:  # a config that rejects its own defaults
            continue
        if getattr(text, "base_model_tp_plan", None) or getattr(config, "base_model_tp_plan", None):
            found[model_type] = classes[model_type]
    return found


def small_model(model_type, class_name):
    """Returns a model with random weights, in which all tensors differ."""
    config_class = CONFIG_MAPPING[model_type]
    config = config_class.from_dict({**shrink(config_class().to_dict()), **OWN_SIZES.get(model_type, {})})
    config.dtype = torch.bfloat16
    model_class = getattr(transformers, class_name if isinstance(class_name, str) else class_name[0])
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count} parameters even when shrunk")
    torch.manual_seed(0)
    model = model_class(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.02 + (1.0 if "norm" in name else 0.0))
    return model

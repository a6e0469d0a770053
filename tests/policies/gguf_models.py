"""A tiny model of the Llama architecture as a GGUF file, written as llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

HEADS, KV_HEADS, WIDTH, LAYERS = 4, 2, 64, 2
BYTES = list(bytes_to_unicode().values())
TOKENS = (*BYTES, "Ġt", "he", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llama(seed: int = 0, tied: bool = True) -> LlamaForCausalLM:
    """A model with random weights whose vocabulary are :data:`TOKENS`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 20_000.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


def write_gguf(
    path: Path, model: LlamaForCausalLM, *, quantized: bool = False, split: str = "default", first: str | None = None
) -> Path:
    """Write ``model`` as llama.cpp's converter does; ``first``: what texts begin with, of one without a template."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(list(MERGES))
    writer.add_eos_token_id(len(TOKENS) - 1)
    writer.add_pad_token_id(len(TOKENS) - 1)
    if first is None:
        writer.add_chat_template(TEMPLATE)
    else:
        writer.add_bos_token_id(TOKENS.index(first))
        writer.add_add_bos_token(True)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        written = names.get_name(name, try_suffixes=(".weight",))
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        if heads:  # Its rotary halves are interleaved.
            tensor = tensor.view(heads, 2, -1, WIDTH).transpose(1, 2).reshape(tensor.shape)
        values = tensor.float().numpy()
        if quantized and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(written, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

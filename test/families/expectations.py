"""What merakc must say of exports that it cannot train, or whose exporter lost
something: texts that must all be in its error, or one that must be in a warning
of `--check`."""

# What the plain default export did to a parameter that cannot be undone: the
# sentence names the parameter and the remedy.
REMEDY = "export with optimize=False"
FOLDED = {
    "albert": "model.albert.embeddings.token_type_embeddings.weight",
    "autoregressive-pixels": "model.0.weight",
    "bart": "model.model.encoder.embed_positions.weight",
    "bert": "model.bert.embeddings.token_type_embeddings.weight",
    "causal-dilated": "gates.0.parametrizations.weight.original0",
    "clip": "model.logit_scale",
    "cnn-batch-norm": "model.1.1.bias",
    "densenet": "model.features.denseblock2.denselayer1.norm2.weight",
    "derived-weights": "model.last",
    "detection-queries": "decoder.layers.0.self_attn.in_proj_bias",
    "electra": "model.electra.embeddings.token_type_embeddings.weight",
    "forecast": "detach",
    "gemma2": "model.model.layers.0.input_layernorm.weight",
    "gpt-neox": "model.gpt_neox.layers.0.post_attention_layernorm.weight",
    "gpt2": "model.transformer.wpe.weight",
    "graph-isomorphism": "model.epsilon",
    "gru-learned-state": "model.first",
    "info-nce": "logit_scale",
    "loss-elastic": "model.0.weight",
    "loss-uncertainty": "log_vars",
    "loss-with-penalty": "model.0.weight",
    "lstm-cells": "model.one.bias_hh",
    "mamba-plain": "model.mixers.0.log_decay",
    "mobilenet-v3": "model.features.3.block.1.1.weight",
    "normalizing-flow": "scale",
    "opt": "model.model.decoder.embed_positions.weight",
    "parallel-scan": "model.mixers.0.rate",
    "parameter-list": "model.mix",
    "perceiver": "model.latents",
    "rnn-bidirectional-relu": "model.layer.bias_hh_l0_reverse",
    "rnn-tanh": "model.layer.weight_hh_l0",
    "rwkv-plain": "model.mixers.0.mix",
    "scalar-parameters": "model.gate",
    "shared-layers": "model.feeds.0.0.weight",
    "sigmoid-pairs": "scale",
    "speaker-statistics": "centers",
    "spectral-like-norm": "model.0.gain",
    "spectral-norm": "model.0.weight",
    "stop-gradient": "detach",
    "swin":
    "model.swin.encoder.layers.1.blocks.1.attention.relative_position_bias.relative_position_bias_table",
    "symmetric-weight": "model.raw",
    "t5":
    "model.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "tied-autoencoder": "hidden",
    "vector-quantized": "detach",
    "vit-registers": "model.position",
    "weight-norm": "model.0.parametrizations.weight.original0",
    "weight-norm-old": "model.0.weight_g",
    "weight-standardization": "model.0.weight",
    "whisper": "model.model.decoder.embed_positions.weight",
}

# (family, exporter), or the family for all of them.
REFUSED = {
    "mixtral": ["NonZero", "data"],
    **{(family, "dynamo-default"): [name, REMEDY]
       for family, name in FOLDED.items()},
}

# The same of what cannot be laid out as asked for (two microbatches), which
# `--check` does not know of.
REFUSED_LAYOUT = {
    # Exported as a loop over all bags of the batch.
    "embedding-bag-sum": ["needs the whole batch of", "use one microbatch"],
}

# By the note of export.py; TorchScript leaves no trace of the first two.
WARNED = {
    "detach is dropped": "detach",
    "label smoothing is dropped": "label smoothing",
    "batch norm is fused": "batch norm",
}


def refused(family, exporter):
    """Texts of the error, and those of `--check`; None if there is none."""
    def of(table):
        return table.get((family, exporter), table.get(family))
    return of(REFUSED) or of(REFUSED_LAYOUT), of(REFUSED)


def warned(note, exporter):
    """A text that a warning must hold, or None."""
    if exporter == "torchscript":
        return None
    return next((text for start, text in WARNED.items()
                 if note.startswith(start)), None)

"""What merakc must say of exports that it cannot train, or whose exporter lost
something: texts that must all be in its error, or one that must be in a warning
of `--check`."""

# What the plain default export did to a parameter that cannot be undone: the
# sentence names the parameter and the remedy.
REMEDY = "export with optimize=False"
FOLDED = {
    "autoregressive-pixels": "model.0.weight",
    "bart": "model.model.shared.weight",
    "causal-dilated": "gates.0.parametrizations.weight.original0",
    "cnn-batch-norm": "model.1.1.bias",
    "densenet": "model.features.denseblock2.denselayer1.norm2.weight",
    "derived-weights": "model.last",
    "detection-queries": "decoder.layers.0.self_attn.in_proj_bias",
    "efficientnet": "model.features.3.0.block.1.1.weight",
    "forecast": "detach",
    "gpt-neox": "model.gpt_neox.layers.0.post_attention_layernorm.weight",
    "info-nce": "logit_scale",
    "loss-elastic": "model.0.weight",
    "loss-preference": "reference.0.weight",
    "loss-with-penalty": "model.0.weight",
    "mobilenet-v3": "model.features.3.block.1.1.weight",
    "normalizing-flow": "exp",
    "parameter-list": "model.mix",
    "resnet18": "model.resnet.encoder.stages.3.layers.0.shortcut.normalization.weight",
    "resnet50": "model.resnet.encoder.stages.3.layers.2.layer.0.normalization.weight",
    "rwkv-plain": "model.mixers.0.mix",
    "speaker-statistics": "centers",
    "spectral-like-norm": "model.0.gain",
    "spectral-norm": "model.0.weight",
    "stop-gradient": "detach",
    "swin":
    "model.swin.encoder.layers.1.blocks.1.attention.relative_position_bias.relative_position_bias_table",
    "symmetric-weight": "model.raw",
    "t5": "model.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "vector-quantized": "detach",
    "vit-registers": "model.position",
    "weight-norm": "model.0.parametrizations.weight.original0",
    "weight-norm-old": "model.0.weight_g",
    "weight-standardization": "model.0.weight",
    "zero-parameters": "model.alphas",
}
# The same with a dynamic batch.
FOLDED_DYNAMIC = {
    "autoregressive-pixels": "model.0.weight",
    "bart": "model.model.shared.weight",
    "causal-dilated": "gates.0.parametrizations.weight.original0",
    "cnn-batch-norm": "model.1.1.bias",
    "densenet": "model.features.denseblock2.denselayer1.norm2.weight",
    "derived-weights": "model.last",
    "detection-queries": "columns",
    "efficientnet": "model.features.3.0.block.1.1.weight",
    "forecast": "detach",
    "info-nce": "logit_scale",
    "loss-elastic": "model.0.weight",
    "loss-with-penalty": "model.0.weight",
    "mobilenet-v3": "model.features.3.block.1.1.weight",
    "parameter-list": "model.mix",
    "resnet18": "model.resnet.encoder.stages.3.layers.0.shortcut.normalization.weight",
    "resnet50": "model.resnet.encoder.stages.3.layers.2.layer.0.normalization.weight",
    "rwkv-plain": "model.mixers.1.decay",
    "speaker-statistics": "centers",
    "spectral-like-norm": "model.0.gain",
    "spectral-norm": "model.0.weight",
    "stop-gradient": "detach",
    "swin":
    "model.swin.encoder.layers.1.blocks.0.attention.relative_position_bias.relative_position_bias_table",
    "symmetric-weight": "model.raw",
    "t5": "model.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
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
    **{(family, "dynamo-optimized"): [name, REMEDY]
       for family, name in FOLDED_DYNAMIC.items()},
}

# The same of what cannot be laid out as asked for (two microbatches), which
# `--check` does not know of.
REFUSED_LAYOUT = {
    # Exported as a loop over all bags of the batch.
    "embedding-bag-sum": ["needs the whole batch of", "use one microbatch"],
    # Labels are the largest of what a frozen teacher says of the batch.
    "deit-distilled": ["summed over all microbatches", "--schedule=gpipe"],
}

# By the note of export.py; TorchScript leaves no trace of the first one.
WARNED = {
    "detach is dropped": "detach",
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

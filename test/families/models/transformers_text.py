"""Architectures of transformers, as their configurations make them."""
import torch
import torch.nn.functional as F

from .common import (FAMILIES, HEADS, KV_HEADS, LAYERS, TOKENS, VOCABULARY, WIDTH,
                     Loss, cross_entropy, family, numbers, tokens)


def next_token(model, ids, labels):
    return cross_entropy(model(input_ids=ids, use_cache=False).logits, labels)


def causal(name, **options):
    """A decoder-only language model of transformers."""
    def build():
        import transformers
        config = getattr(transformers, name + "Config")(
            vocab_size=VOCABULARY, attn_implementation="eager", use_cache=False,
            **options)
        kind = getattr(transformers, name + "ForCausalLM", None) or getattr(
            transformers, name + "LMHeadModel")
        return Loss(kind(config), next_token), {"ids": tokens(), "labels": tokens()}
    return build


LLAMA = dict(hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=LAYERS,
             num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
             max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
             eos_token_id=2)


def masked(name):
    """An encoder with a head that predicts tokens."""
    def build():
        import transformers
        config = getattr(transformers, name + "Config")(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, intermediate_size=64,
            max_position_embeddings=32, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="eager")
        model = getattr(transformers, name + "ForMaskedLM")(config)

        def loss(model, ids, mask, labels):
            return cross_entropy(
                model(input_ids=ids, attention_mask=mask).logits, labels)

        def mask(n):
            keep = torch.ones(n, TOKENS, dtype=torch.int64)
            keep[:, TOKENS - 2:] = 0
            return keep
        return Loss(model, loss), {"ids": tokens(), "mask": mask,
                                   "labels": tokens()}
    return build


def translation(model):
    """An encoder of the input and a decoder of 8 tokens."""
    def loss(model, ids, decoder_ids, labels):
        return cross_entropy(
            model(input_ids=ids, decoder_input_ids=decoder_ids,
                  use_cache=False).logits, labels)
    return Loss(model, loss), {"ids": tokens(), "decoder_ids": tokens(8),
                               "labels": tokens(8)}


@family
def t5():
    import transformers
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=LAYERS,
        num_heads=HEADS, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
        attn_implementation="eager"))
    return translation(model)


@family
def bart():
    import transformers
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS,
        decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
        use_cache=False, attn_implementation="eager"))
    return translation(model)


@family
def whisper():
    import transformers
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS,
            decoder_layers=LAYERS, encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS, encoder_ffn_dim=64,
            decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
            max_target_positions=16, dropout=0.0, attention_dropout=0.0,
            use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, attn_implementation="eager"))

    def loss(model, features, decoder_ids, labels):
        return cross_entropy(
            model(input_features=features, decoder_input_ids=decoder_ids,
                  use_cache=False).logits, labels)
    return Loss(model, loss), {"features": numbers(8, 32),
                               "decoder_ids": tokens(8), "labels": tokens(8)}


@family(whole=True)
def clip():
    """The contrastive loss over the whole batch."""
    import transformers
    common = dict(hidden_size=WIDTH, intermediate_size=64,
                  num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  attention_dropout=0.0)
    text = dict(vocab_size=VOCABULARY, max_position_embeddings=TOKENS,
                eos_token_id=2, **common)
    vision = dict(image_size=16, patch_size=8, **common)
    model = transformers.CLIPModel(transformers.CLIPConfig(
        text_config=text, vision_config=vision, projection_dim=16,
        attn_implementation="eager"))

    def loss(model, ids, pixels):
        return model(input_ids=ids, pixel_values=pixels,
                     return_loss=True).loss
    return Loss(model, loss), {"ids": tokens(),
                               "pixels": numbers(3, 16, 16)}


@family
def gpt2():
    return causal("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                  n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                  attn_pdrop=0.0)()


FAMILIES.update({
    "gpt-neox": causal("GPTNeoX", hidden_size=WIDTH, num_hidden_layers=LAYERS,
                       num_attention_heads=HEADS, intermediate_size=64,
                       max_position_embeddings=32, rotary_pct=0.5,
                       hidden_dropout=0.0, attention_dropout=0.0),
    "llama": causal("Llama", **LLAMA),
    "mistral": causal("Mistral", sliding_window=6, **LLAMA),
    "qwen2": causal("Qwen2", **LLAMA),
    "qwen3": causal("Qwen3", head_dim=8, **LLAMA),
    "gemma": causal("Gemma", head_dim=8, **LLAMA),
    "gemma2": causal("Gemma2", head_dim=8, sliding_window=6, **LLAMA),
    "bloom": causal("Bloom", hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS,
                    hidden_dropout=0.0, attention_dropout=0.0),
    "opt": causal("OPT", hidden_size=WIDTH, num_hidden_layers=LAYERS,
                  num_attention_heads=HEADS, ffn_dim=64, dropout=0.0,
                  word_embed_proj_dim=WIDTH, max_position_embeddings=32),
    "phi3": causal("Phi3", **LLAMA),
    "olmo2": causal("Olmo2", **LLAMA),
    "bert": masked("Bert"),
    "albert": masked("Albert"),
    "electra": masked("Electra"),
    "roberta": masked("Roberta"),
    "mixtral": causal("Mixtral", num_local_experts=4, num_experts_per_tok=2,
                      experts_implementation="eager", **LLAMA),
})

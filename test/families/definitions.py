"""The model families: small configurations with random weights, their inputs
and their loss. Needs torch, transformers and torchvision.

Each entry of FAMILIES is a function that returns (module, inputs): the module
maps the inputs to a scalar loss, `inputs` maps names to functions of the number
of samples.
"""
import torch
import torch.nn.functional as F
from torch import nn

# The embedding has more than 8192 elements: the dynamo exporter folds smaller
# transposed heads, which unties them.
VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS, TOKENS = 272, 32, 4, 2, 2, 12


def tokens(length=TOKENS, low=3):
    return lambda n: torch.randint(low, VOCABULARY, (n, length))


def numbers(*shape):
    return lambda n: torch.randn(n, *shape)


def classes(count):
    return lambda n: torch.randint(0, count, (n,))


class Loss(nn.Module):
    """A model and the function that makes a loss of it and the inputs."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs):
        return self.loss(self.model, *inputs)


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                           labels.reshape(-1))


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


def t5():
    import transformers
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=LAYERS,
        num_heads=HEADS, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
        attn_implementation="eager"))
    return translation(model)


def bart():
    import transformers
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=LAYERS,
        decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
        use_cache=False, attn_implementation="eager"))
    return translation(model)


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


def image_loss(model, pixels, labels):
    found = model(pixels)
    return F.cross_entropy(getattr(found, "logits", found), labels)


def image(make, size=32, count=10):
    def build():
        return Loss(make(), image_loss), {"pixels": numbers(3, size, size),
                                          "labels": classes(count)}
    return build


def from_transformers(name, **options):
    def make():
        import transformers
        config = getattr(transformers, name + "Config")(num_labels=10,
                                                        **options)
        return getattr(transformers, name + "ForImageClassification")(config)
    return make


def resnet(**options):
    """The depth of an original, narrow. The last norm of every block starts
    small, as in practice: otherwise five steps of PyTorch itself in float32 and
    in float64 differ by a tenth."""
    def make():
        model = from_transformers("ResNet", embedding_size=8, **options)()
        for part in model.modules():
            if type(part).__name__ in ("ResNetBasicLayer",
                                       "ResNetBottleNeckLayer"):
                torch.nn.init.constant_(part.layer[-1].normalization.weight,
                                        0.2)
        return model
    return image(make, size=64)


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


def mobilenet_v3():
    from torchvision.models.mobilenetv3 import (InvertedResidualConfig,
                                                MobileNetV3)
    setting = [InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
               InvertedResidualConfig(16, 3, 32, 24, False, "HS", 2, 1, 1.0),
               InvertedResidualConfig(24, 5, 48, 24, True, "HS", 1, 1, 1.0)]
    return MobileNetV3(setting, 32, num_classes=10, dropout=0.0)


def efficientnet():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig
    setting = [MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0),
               MBConvConfig(4, 3, 2, 8, 16, 1, 1.0, 1.0),
               MBConvConfig(4, 5, 2, 16, 24, 1, 1.0, 1.0)]
    return EfficientNet(setting, dropout=0.0, stochastic_depth_prob=0.0,
                        num_classes=10, last_channel=48)


def densenet():
    from torchvision.models.densenet import DenseNet
    return DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16,
                    bn_size=2, num_classes=10)


class UNet(nn.Module):
    """Two levels down, two up, a skip at each; one class a pixel."""

    def __init__(self, width=8, count=4):
        super().__init__()
        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1),
                                 nn.GroupNorm(2, o), nn.SiLU(),
                                 nn.Conv2d(o, o, 3, padding=1),
                                 nn.GroupNorm(2, o), nn.SiLU())
        self.down1, self.down2 = block(3, width), block(width, 2 * width)
        self.middle = block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = block(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="nearest")
        self.join1 = block(3 * width, width)
        self.head = nn.Conv2d(width, count, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.join2(torch.cat([self.up2(c), b], 1))
        return self.head(self.join1(torch.cat([self.up1(d), a], 1)))


def unet():
    return Loss(UNet(), image_loss), {
        "pixels": numbers(3, 16, 16),
        "labels": lambda n: torch.randint(0, 4, (n, 16, 16))}


class Dlrm(nn.Module):
    """Embeddings of categories, a bottom network for numbers, products of all
    pairs, a top network."""

    def __init__(self, tables=4, rows=64, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width)
                                    for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(8, 32), nn.Tanh(),
                                    nn.Linear(32, width), nn.Tanh())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.Tanh(),
                                 nn.Linear(32, 1))
        index = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("row", index[0])
        self.register_buffer("column", index[1])

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        all_ = torch.stack([x] + [table(sparse[:, i]) for i, table in
                                  enumerate(self.tables)], 1)
        products = torch.bmm(all_, all_.transpose(1, 2))
        pairs = products[:, self.row, self.column]
        return self.top(torch.cat([x, pairs], 1))[:, 0]


def dlrm():
    def loss(model, dense, sparse, clicked):
        return F.binary_cross_entropy_with_logits(model(dense, sparse), clicked)
    return Loss(Dlrm(), loss), {
        "dense": numbers(8),
        "sparse": lambda n: torch.randint(0, 64, (n, 4)),
        "clicked": lambda n: torch.randint(0, 2, (n,)).float()}


def gpt2():
    return causal("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                  n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                  attn_pdrop=0.0)()


FAMILIES = {
    "gpt2": gpt2,
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
    "bert": masked("Bert"),
    "roberta": masked("Roberta"),
    "t5": t5,
    "bart": bart,
    "whisper": whisper,
    "vit": image(from_transformers(
        "ViT", hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, intermediate_size=64, image_size=32,
        patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager")),
    "swin": image(from_transformers(
        "Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
        num_heads=[2, 4], window_size=4, drop_path_rate=0.0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager")),
    "convnext": image(from_transformers(
        "ConvNext", num_stages=2, hidden_sizes=[16, 32], depths=[1, 1],
        drop_path_rate=0.0)),
    "clip": clip,
    "resnet18": resnet(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 2, 2],
                       layer_type="basic"),
    "resnet50": resnet(hidden_sizes=[16, 32, 48, 64], depths=[3, 4, 6, 3],
                       layer_type="bottleneck"),
    "mobilenet-v3": image(mobilenet_v3),
    "efficientnet": image(efficientnet),
    "densenet": image(densenet),
    "unet": unet,
    "dlrm": dlrm,
    "mixtral": causal("Mixtral", num_local_experts=4, num_experts_per_tok=2,
                      experts_implementation="eager", **LLAMA),
}

"""Image classifiers of transformers and torchvision, narrow."""
import torch
import torch.nn.functional as F

from .common import FAMILIES, HEADS, LAYERS, WIDTH, Loss, classes, numbers


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


FAMILIES.update({
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
    "resnet18": resnet(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 2, 2],
                       layer_type="basic"),
    "resnet50": resnet(hidden_sizes=[16, 32, 48, 64], depths=[3, 4, 6, 3],
                       layer_type="bottleneck"),
    "mobilenet-v3": image(mobilenet_v3),
    "efficientnet": image(efficientnet),
    "densenet": image(densenet),
})

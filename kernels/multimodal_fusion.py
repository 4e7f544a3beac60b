"""Cross-attention of camera image tokens to lidar and text tokens, added back through a learned gate."""

import torch
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

import perfci

LIDAR, TEXT = 256, 512  # channels of the two other modalities
# Every stage rounds to the type: the result by up to eps/2 · |out|, which rtol covers twice. The roundings of the
# stages before average out in the sums that follow: bf16 results err by 0.0018 to 0.0027 in all (standard deviation, on
# a CPU), of which atol allows five to nine. fp32 sums of up to 1536 products leave more of its eps.
TOLERANCE = {"bf16": (2**-7, 2**-6), "fp32": (2**-21, 2**-19)}


def fuse(image, lidar, text, weights, heads):
    """image [batch, tokens, dim] updated from lidar [batch, tokens, 256] and text [batch, tokens, 512]."""
    batch, tokens, dim = image.shape

    def split(x):
        return x.view(batch, -1, heads, dim // heads).transpose(1, 2)

    context = torch.cat([linear(lidar, weights["lidar"]), linear(text, weights["text"])], 1)
    query = linear(layer_norm(image, (dim,)), weights["query"])
    key, value = linear(context, weights["key_value"]).chunk(2, -1)
    mixed = scaled_dot_product_attention(split(query), split(key), split(value))
    mixed = mixed.transpose(1, 2).reshape(batch, tokens, dim)
    return torch.addcmul(image, torch.tanh(weights["gate"]), linear(mixed, weights["out"]))


def reference(image, lidar, text, weights, heads):
    """The same in float64, every step written out."""
    image, lidar, text = image.double(), lidar.double(), text.double()
    weights = {name: weight.double() for name, weight in weights.items()}
    context = torch.cat([lidar @ weights["lidar"].T, text @ weights["text"].T], 1)
    centred = image - image.mean(-1, keepdim=True)
    query = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() @ weights["query"].T
    key, value = (context @ weights["key_value"].T).chunk(2, -1)
    width = image.shape[-1] // heads
    mixed = torch.empty_like(image)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / width**0.5
        mixed[..., part] = torch.softmax(scores, -1) @ value[..., part]
    return image + torch.tanh(weights["gate"]) * (mixed @ weights["out"].T)


@perfci.kernel(
    params={"batch": [8], "dtype": ["bf16"]},
    fuzz={"image": [1, 1000], "lidar": [1, 500], "text": [1, 77]},
    devices={
        "cuda": None,
        "cpu": {
            "params": {
                "batch": [1],
                "image": [64],
                "lidar": [32],
                "text": [8],
                "dim": [128],
                "heads": [4],
                "dtype": ["fp32"],
            },
            "fuzz": {"image": [1, 100], "lidar": [1, 50], "text": [1, 7]},
        },
    },
)
def multimodal_fusion(bench, batch, dtype, *, image=1024, lidar=512, text=64, dim=768, heads=12):
    def weight(rows, columns):  # keeps the variance of what it is applied to
        return bench.randn(rows, columns, dtype=dtype).mul_(columns**-0.5)

    inputs = [
        bench.randn(batch, tokens, channels, dtype=dtype)
        for tokens, channels in ((image, dim), (lidar, LIDAR), (text, TEXT))
    ]
    weights = {
        "lidar": weight(dim, LIDAR),
        "text": weight(dim, TEXT),
        "query": weight(dim, dim),
        "key_value": weight(2 * dim, dim),
        "out": weight(dim, dim),
        "gate": bench.randn(dim, dtype=dtype),
    }
    context = lidar + text
    macs = lidar * dim * LIDAR + text * dim * TEXT  # projections of the two modalities
    macs += (2 * image + 2 * context) * dim * dim  # query and out, key and value
    macs += 2 * image * context * dim  # scores and mix
    bench.work(
        flops=2 * batch * macs,
        read=sum(tensor.nbytes for tensor in [*inputs, *weights.values()]),
        written=inputs[0].nbytes,
        items=batch,
        item="samples",
    )
    rtol, atol = TOLERANCE[dtype]
    bench.reference(lambda: reference(*inputs, weights, heads), rtol=rtol, atol=atol)
    return lambda: fuse(*inputs, weights, heads)

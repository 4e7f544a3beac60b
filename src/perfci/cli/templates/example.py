"""A first case for perfci. Replace smooth() by your own kernel."""

import torch

import perfci


def smooth(x, rounds):
    """The code under test: smooth every row, several times."""
    for _ in range(rounds):
        x = 0.25 * x.roll(1, -1) + 0.5 * x + 0.25 * x.roll(-1, -1)
    return x


@perfci.kernel(params={"rounds": [4, 8]}, devices=["cuda", "cpu"])
def smoothing(bench, rounds):
    rows = 8192 if bench.device.type == "cuda" else 64
    x = bench.randn(rows, 4096)  # seeded; drawn and placed anew for every placement
    bench.work(read=x.nbytes, written=x.nbytes)

    def reference():
        kernel = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64, device=x.device).view(1, 1, 3)
        y = x.double().unsqueeze(1)
        for _ in range(rounds):
            y = torch.nn.functional.conv1d(torch.nn.functional.pad(y, (1, 1), mode="circular"), kernel)
        return y.squeeze(1)

    bench.reference(reference, rtol=1e-5, atol=1e-5)
    return lambda: smooth(x, rounds)

"""Values quantised to float8_e4m3fn: the right ones, and which results pass for them."""

from __future__ import annotations

from typing import Any

from bandwatch.measure import correctness

#: Largest number of the type.
LARGEST = 448.0


def in_blocks(values: Any, block: int) -> Any:
    """(rows, columns) as (rows, blocks, columns of a block), 0 behind the last column."""
    import torch

    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % block))
    return padded.unflatten(-1, (-1, block))


def quantised(blocks: Any, columns: int) -> tuple[Any, Any]:
    """The quantised (rows, columns), and the scales (rows, blocks) in float32."""
    import torch

    scales = blocks.abs().amax(-1) / LARGEST
    scales = torch.where(scales == 0, 1.0, scales)
    quotients = (blocks / scales.unsqueeze(-1)).float().clamp(-LARGEST, LARGEST)
    result = quotients.to(torch.float8_e4m3fn).flatten(-2)[..., :columns].contiguous()
    return result, scales.float()


def require_nearest(q: Any, blocks: Any, scales: Any) -> None:
    """Require each element of ``q`` to be the nearest of its type to what is quantised, float64
    in blocks, or one of two that are almost equally near; raises WrongResult."""
    import torch

    if not q.numel():
        return
    scales = scales.double().view(*blocks.shape[:2], 1)
    found = torch.nn.functional.pad(q.double(), (0, blocks[0].numel() - q.shape[-1]))
    quotients = (blocks / scales).abs()
    # half the distance of neighbours in the type: 3 bits behind the leading one, down to 2^-6
    exponents = torch.frexp(quotients.clamp(min=2.0**-6)).exponent - 1
    nearest = torch.ldexp(torch.ones_like(quotients), exponents - 4)
    error = (found.view(blocks.shape) - blocks / scales).abs()
    wrong = error > nearest + 1e-4 * quotients + 1e-9
    if wrong.any():
        row, block, column = wrong.nonzero()[0].tolist()
        raise correctness.WrongResult(
            f"{int(wrong.sum())} of {q.numel()} values are not the nearest, first in row "
            f"{row}, block {block}, column {column}"
        )

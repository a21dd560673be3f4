"""Dropout whose mask depends on a seed and an element's place alone, so that nothing is stored."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32, const_expr

#: Constants of Philox4x32 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(counter: tuple, key: tuple) -> tuple:
    """Philox4x32-10: four random words of a counter of four words and a key of two."""
    a, b, c, d = (Uint32(word) for word in counter)
    key = tuple(Uint32(word) for word in key)
    for _ in range(_ROUNDS):
        first, second = Uint32(_MULTIPLIERS[0]), Uint32(_MULTIPLIERS[1])
        high_a, low_a = cute.arch.mul_hi(a, first), a * first
        high_c, low_c = cute.arch.mul_hi(c, second), c * second
        a, b, c, d = high_c ^ b ^ key[0], low_c, high_a ^ d ^ key[1], low_a
        key = tuple(word + Uint32(step) for word, step in zip(key, _KEY_STEPS, strict=True))
    return a, b, c, d


class Dropout:
    """Zeroes elements of a matrix at random and scales the others.

    Column j of row i is kept where the upper 24 bits of word j % 4 of
    ``philox((j // 4, i, 0, 0), seed)`` are at least ``threshold``.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @cute.jit
    def apply(
        self,
        fragment: cute.Tensor,
        seed: cute.Tensor,
        of: cute.Tensor,
        row: Int32,
        lane: Int32,
        threshold: Int32,
        scale: Float32,
    ) -> None:
        """Drop from and scale a float32 fragment of ``of``, the matrix's row number ``row``."""
        key = (seed[0], seed[0] >> 32)
        vector = self.rows.vector
        # where vectors start on multiples of four columns, each takes whole draws
        whole = const_expr(vector % 4 == 0 and not self.rows.shifted)
        for i in cutlass.range_constexpr(self.rows.count):
            column = self.rows.column(of, lane, i)
            quad, ahead = column >> 2, column & 3
            words = []
            for q in cutlass.range_constexpr((vector + (0 if whole else 3) + 3) // 4):
                words += philox((quad + q, row, 0, 0), key)
            for v in cutlass.range_constexpr(vector):
                word = words[v]
                if const_expr(not whole):
                    for j in cutlass.range_constexpr(1, 4):
                        if ahead == j:
                            word = words[v + j]
                kept = Int32(word >> 8) >= threshold
                fragment[v, i] = fragment[v, i] * scale if kept else Float32(0.0)

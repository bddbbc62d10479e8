"""Codes as base-s digits of words, words in groups of 64.

A group of L words (64; the last group has as many as its r values need, L = ceil(r / k)) holds L k consecutive values:
digit i of word j is value i L + j (0 past the end), and word j = sum_i digit_i s^i. The group's bytes: the low whole
bytes of word 0, of word 1, ... (little-endian), then each remaining bit of all words as a plane of ceil(L / 8) bytes,
bit j % 8 of byte j / 8 for word j.
"""

import torch
from torch import Tensor

from thinwire.kernels.pack.digits import GROUP, Digits, digit_layout, packed_bytes

__all__ = ["pack", "unpack"]


def _pack_groups(codes: Tensor, digits: Digits) -> Tensor:
    """uint8 `[groups, count, L]` to uint8 `[groups, bytes]`."""
    groups, _, lanes = codes.shape
    power = torch.tensor([digits.base**i for i in range(digits.count)], device=codes.device)
    words = (codes.to(torch.int64) * power[:, None]).sum(1)
    shifts = 8 * torch.arange(digits.whole_bytes, device=codes.device)
    low = (words[:, :, None] >> shifts) & 255
    high = (
        words[:, None, :] >> (8 * digits.whole_bytes + torch.arange(digits.planes, device=codes.device))[:, None]
    ) & 1
    high = torch.nn.functional.pad(high, (0, -lanes % 8)).reshape(groups, digits.planes, -(-lanes // 8), 8)
    high = (high << torch.arange(8, device=codes.device)).sum(-1)
    return torch.cat([low.flatten(1), high.flatten(1)], dim=1).to(torch.uint8)


def _unpack_groups(packed: Tensor, digits: Digits, lanes: int) -> Tensor:
    """uint8 `[groups, bytes]` to uint8 `[groups, count, lanes]`."""
    groups, split = packed.shape[0], lanes * digits.whole_bytes
    low = packed[:, :split].to(torch.int64).reshape(groups, lanes, digits.whole_bytes)
    words = (low << (8 * torch.arange(digits.whole_bytes, device=packed.device))).sum(-1)
    octets = -(-lanes // 8)
    high = packed[:, split:].to(torch.int64).reshape(groups, digits.planes, octets, 1)
    high = (high >> torch.arange(8, device=packed.device)) & 1
    high = high.reshape(groups, digits.planes, 8 * octets)[:, :, :lanes]
    planes = 8 * digits.whole_bytes + torch.arange(digits.planes, device=packed.device)
    words = words + (high << planes[:, None]).sum(1)
    power = torch.tensor([digits.base**i for i in range(digits.count)], device=packed.device)
    return ((words[:, None, :] // power[:, None]) % digits.base).to(torch.uint8)


def pack(codes: Tensor, levels: int) -> Tensor:
    """Pack codes, uint8 `[values]` each below `levels`, into uint8 `[packed_bytes(values, levels)]`."""
    digits = digit_layout(levels)
    full = len(codes) // (GROUP * digits.count)
    head, tail = codes[: full * GROUP * digits.count], codes[full * GROUP * digits.count :]
    parts = [_pack_groups(head.reshape(full, digits.count, GROUP), digits).reshape(-1)]
    if len(tail):
        lanes = -(-len(tail) // digits.count)
        padded = torch.nn.functional.pad(tail, (0, lanes * digits.count - len(tail)))
        parts.append(_pack_groups(padded.reshape(1, digits.count, lanes), digits).reshape(-1))
    return torch.cat(parts)


def unpack(packed: Tensor, levels: int, values: int) -> Tensor:
    """Unpack `values` codes, uint8, each below `levels` whatever the bytes are."""
    digits = digit_layout(levels)
    full, rest = divmod(values, GROUP * digits.count)
    split = full * 8 * digits.bits
    parts = [_unpack_groups(packed[:split].reshape(full, 8 * digits.bits), digits, GROUP).reshape(-1)]
    if rest:
        lanes = -(-rest // digits.count)
        tail = packed[split : packed_bytes(values, levels)].reshape(1, -1)
        parts.append(_unpack_groups(tail, digits, lanes).reshape(-1)[:rest])
    return torch.cat(parts)

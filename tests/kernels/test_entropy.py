"""The entropy coder: every small message, absurd tables, hostile words; the kernels equal the reference to the bit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.coding import MIDDLE, book_tables, by_hand, ideal_bits, small_tables
from tests.kernels.data import both
from tests.kernels.fuzz_entropy import Words, attack

from thinwire import kernels
from thinwire.kernels.entropy import book, decode_codes, encode_codes, make_book
from thinwire.kernels.entropy.book import CLASSES, MAPS, SHAPES
from thinwire.kernels.entropy.reference import ROOM

ONE, EVEN, STEEP = [1], [40, 900], [1, 2, 3, 2000]
WIDEST = list(range(1, 241))  # 481 codes, of which all but one have a single slot


def encoded(codes, phases, counts, classes, tables, log_phases, chunk_runs=4, room=None):
    """Words of all chunks and where they start, equal on both backends."""
    room = room or 3 * ROOM * chunk_runs
    chunks = []
    for words, lengths in both(encode_codes, codes, phases, counts, classes, tables, log_phases, chunk_runs, room):
        assert int(lengths.min()) >= 16
        chunks.append([row[room - size :] for row, size in zip(words, lengths.tolist())])
    assert all(torch.equal(a, b) for a, b in zip(*chunks))
    lengths = torch.tensor([0] + [len(chunk) for chunk in chunks[0]])
    return Words(torch.cat(chunks[0]), lengths.cumsum(0), phases, counts, tables, log_phases, chunk_runs)


def check(codes, phases, counts, classes, tables, log_phases, chunk_runs=4):
    """Both backends write the same words and read them back."""
    message = encoded(codes, phases, counts, classes, tables, log_phases, chunk_runs)
    for found, seen, good in both(decode_codes, *message):
        assert good.all()
        assert torch.equal(found, codes)
        assert torch.equal(seen, classes)
    return message


def plain_message(codes, tables, count=7, row=0):
    """Codes without phases, in runs of a few values."""
    codes = torch.tensor(codes, dtype=torch.int32)
    counts = torch.tensor([count] * (len(codes) // count))
    return (
        codes,
        torch.zeros(len(codes), dtype=torch.uint8),
        counts,
        torch.full_like(counts, 2 + row, dtype=torch.uint8),
    )


@pytest.mark.parametrize("half", [ONE, EVEN, STEEP], ids=len)
def test_every_message_of_a_small_alphabet_comes_back(half):
    """All sequences of 7 codes -1 .. 1, and of 5 codes -2 .. 2: some are in no row and escape."""
    tables = small_tables(half)
    for alphabet, count in ((range(-1, 2), 7), (range(-2, 3), 5)):
        codes = [code for message in itertools.product(alphabet, repeat=count) for code in message]
        check(*plain_message(codes, tables, count), tables, 0, chunk_runs=64)


@pytest.mark.parametrize("half", [ONE, EVEN, STEEP, WIDEST], ids=len)
def test_every_code_that_can_be_encoded_comes_back(half):
    tables = small_tables(half)
    check(*plain_message(list(range(-240, 241)), tables, 13), tables, 0)


def test_a_code_too_far_out_or_too_little_room_is_reported_and_nothing_else():
    tables = small_tables(STEEP)
    message = plain_message([0] * 28 + [0, 0, 241, 0, 0, 0, 0] + [0] * 28, tables)
    for _, lengths in both(encode_codes, *message, tables, 0, 2, 4 * ROOM):
        assert (lengths < 0).tolist() == [False, False, True, False, False]
    for far in (1 << 27, -(1 << 30)):  # times 32, and cut to 32 bits, both are 0
        codes, phases, counts, classes = plain_message([0] * 6 + [far], tables)
        for _, lengths in both(encode_codes, codes, phases, counts, classes, book_tables(), 5, 1, 4 * ROOM):
            assert lengths.tolist() == [-1]
    for _, lengths in both(encode_codes, *plain_message([200] * 280, tables, 28), tables, 0, 5, ROOM + 20):
        assert (lengths < 0).all()


def test_long_runs_of_one_certain_code_take_almost_nothing():
    tables = small_tables([1])
    words = check(*plain_message([0] * 2048, tables, 256), tables, 0, chunk_runs=8).words
    assert 16 * len(words) <= 8 * 32 + 2048 * math.log2(4096 / 4094) + 8 * 12 + 16


@pytest.mark.parametrize("log_phases", [0, 5])
@pytest.mark.parametrize("seed", range(4))
def test_codes_without_a_slot_among_others_that_have_some(seed, log_phases):
    rng, stride, n = np.random.default_rng(seed), 1 << log_phases, 1500
    counts = rng.integers(0, 40, 20 * stride) * (rng.random(20 * stride) < 0.5 / stride)
    tables = small_tables(np.cumsum(counts).tolist(), log_phases=log_phases)
    phases = rng.integers(0, stride, n)
    begin = np.arange(-19, 20)[:, None] * stride - phases - 1 + MIDDLE
    slots = (tables[0][0][begin + stride] - tables[0][0][begin]).numpy()
    assert (slots == 0).mean() > 0.1
    codes = torch.from_numpy((slots > 0) * rng.random(slots.shape)).argmax(0).to(torch.int32) - 19
    sizes = torch.full((n // 100,), 100)
    classes = torch.full((n // 100,), 2, dtype=torch.uint8)
    check(codes, torch.from_numpy(phases.astype(np.uint8)), sizes, classes, tables, log_phases)


@pytest.mark.parametrize("log_phases", [0, 5])
def test_a_code_with_all_slots_takes_no_bits(log_phases):
    stride, words = 1 << log_phases, []
    for count in (1, 256):
        codes = torch.zeros(9 * count, dtype=torch.int32)
        phases = (torch.arange(9 * count) % stride).to(torch.uint8)
        sizes, classes = torch.full((9,), count), torch.full((9,), 2, dtype=torch.uint8)
        tables = small_tables([0] * stride, log_phases=log_phases)
        words.append(check(codes, phases, sizes, classes, tables, log_phases).words)
    assert torch.equal(*words)


@pytest.mark.parametrize("log_phases", [0, 5])
def test_rows_as_wide_as_the_format_has_them(log_phases):
    """One more boundary on either side, and escapes would leave the row."""
    stride = 1 << log_phases
    tables = small_tables(list(range(1, MIDDLE - stride + 1)), log_phases=log_phases)
    assert tables[2].tolist() == [[stride, 2 * MIDDLE - 2 * stride]]
    codes = torch.arange(-240, 241, dtype=torch.int32).repeat_interleave(stride)
    phases = torch.arange(stride, dtype=torch.uint8).repeat(481)
    sizes = torch.full((37 * stride,), 13)
    check(codes, phases, sizes, torch.full_like(sizes, 2, dtype=torch.uint8), tables, log_phases)


def random_message(seed: int, runs: int = 9):
    """Runs of classes all over the book, loud ones with low bits among them; codes of that scale, and far out."""
    rng = np.random.default_rng(seed)
    counts = torch.from_numpy(rng.integers(1, 257, runs))
    classes = rng.integers(0, 112, runs)
    classes[rng.random(runs) < 0.6] = rng.integers(20, 46)
    scale = np.repeat(2.0 ** ((classes - 2.0) / 4 - 8), counts.numpy())
    scale[rng.random(len(scale)) < 0.03] *= 7
    codes = np.rint(scale * rng.standard_normal(len(scale)))
    low_bits = np.repeat(np.maximum(0, -((43 + 2 - classes) // 4)), counts.numpy())
    codes = np.clip(codes, -(240 * 2.0**low_bits), 240 * 2.0**low_bits)
    codes[np.repeat(classes, counts.numpy()) < 2] = 0
    phases = torch.from_numpy(rng.integers(0, 32, len(scale), dtype=np.uint8))
    return torch.from_numpy(codes.astype(np.int32)), phases, counts, torch.from_numpy(classes.astype(np.uint8))


@pytest.mark.parametrize("seed", range(12))
def test_messages_under_the_book_come_back_and_read_as_the_format_says(seed):
    tables = book_tables(shape=seed % 4, map_=seed // 4)
    codes, phases, counts, classes = random_message(seed)
    message = check(codes, phases, counts, classes, tables, 5)
    value = 0
    for chunk, first in enumerate(range(0, len(counts), 4)):
        words = [word & 0xFFFF for word in message.words[message.starts[chunk] : message.starts[chunk + 1]].tolist()]
        sizes = counts[first : first + 4].tolist()
        stop = value + sum(sizes)
        seen, found, states, left = by_hand(words, sizes, phases[value:stop].tolist(), tables, 5)
        assert seen == classes[first : first + 4].tolist()
        wanted = [c for run, part in enumerate(codes[value:stop].split(sizes)) for c in part.tolist() if seen[run] >= 2]
        assert found == wanted
        assert states == [65536] * 8
        assert left == []
        value = stop


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), runs=st.integers(1, 12), chunk_runs=st.integers(1, 6))
def test_any_message_comes_back(seed, runs, chunk_runs):
    check(*random_message(seed, runs), book_tables(seed % 4, seed // 4 % 4), 5, chunk_runs)


@pytest.mark.parametrize("row", [0, 20, 32, 36, 43])
def test_length_is_the_ideal_one_and_the_states(row):
    """Each lane ends with 16 bits of its own and what its state holds: 16 to 32 bits; coding loses next to nothing."""
    rng, tables = np.random.default_rng(row), book_tables()
    n = 64 * 256
    phases = torch.from_numpy(rng.integers(0, 32, n, dtype=np.uint8))
    u = (phases.numpy() + rng.random(n)) / 32
    codes = torch.from_numpy(np.floor(2.0 ** (row / 4 - 8) * rng.standard_normal(n) + u).astype(np.int32))
    counts = torch.full((64,), 256)
    words = encoded(codes, phases, counts, torch.full((64,), row + 2, dtype=torch.uint8), tables, 5, 64).words
    ideal = sum(ideal_bits(q, p, row, 0, tables, 5) for q, p in zip(codes.tolist(), phases.tolist()))
    ideal += 64 * 0.2 + 30  # classes: the first, and then the same again
    assert ideal - 64 <= 16 * len(words) <= 1.0005 * ideal + 8 * 32


def test_no_code_within_a_row_is_impossible_whatever_the_phase():
    for rows, stride in ((book().scales, 32), (book().maps, 1)):
        bounds = rows.bounds.to(torch.int64)
        for row, (low, high) in enumerate(rows.limits.tolist()):
            frequency = bounds[row, stride:] - bounds[row, :-stride]
            assert int(frequency[low - stride : high + stride].min()) >= 1
            assert bounds[row].diff().min() >= 0
            assert (int(bounds[row, low]) >= 1) == (int(bounds[row, high + stride - 1]) <= 4095)


def test_the_book_is_what_its_maker_writes():
    """To 1 of 4096: another machine's exp may differ in its last bit."""
    for shape, tau in enumerate(SHAPES):
        for number in range(CLASSES):
            row, bits = make_book.scale_row(number, tau)
            kept = book().scales.bounds[shape * CLASSES + number, MIDDLE - len(row) : MIDDLE]
            assert abs(row - kept.numpy()).max() <= 1
            assert abs(bits - book().expected[shape, number]) < 2 / 1024
    for number, share in enumerate(MAPS):
        row = make_book.map_row(share)
        assert abs(row - book().maps.bounds[number, MIDDLE - len(row) : MIDDLE].numpy()).max() <= 1


def hostile():
    """Three chunks of two runs each, with a few escapes."""
    rng = np.random.default_rng(0)
    counts = torch.tensor([200, 120, 33, 7, 256, 1])
    phases = torch.from_numpy(rng.integers(0, 32, 617, dtype=np.uint8))
    codes = torch.from_numpy(np.rint(1.2 * rng.standard_normal(617)).astype(np.int32))
    codes[::97] = torch.tensor([60, -13, 240, -240, 20, -20, 12])
    return encoded(codes, phases, counts, torch.full((6,), 34, dtype=torch.uint8), book_tables(), 5, chunk_runs=2)


def test_every_truncation_of_a_chunk_is_seen():
    message = hostile()
    for length in range(int(message.starts[1])):
        starts = torch.tensor([0, length])
        counts = message.counts[:2]
        cut = message._replace(starts=starts, counts=counts, phases=message.phases[: counts.sum()])
        for _, _, good in both(decode_codes, *cut):
            assert not good.any()


def test_a_changed_byte_is_seen_or_makes_another_message():
    """States and last word must come out right: what passes is what an encoder writes for other codes (plain bits)."""
    message = hostile()
    octets, passed = message.words.view(torch.uint8), 0
    with kernels.backend("cpu"):
        for at in range(len(octets)):
            chunk = int((message.starts[1:] * 2 <= at).sum())
            for flip in (0x01, 0x80, 0xFF):
                altered = octets.clone()
                altered[at] ^= flip
                words = altered.view(torch.int16)
                codes, classes, good = decode_codes(words, *message[1:])
                assert good.tolist() in ([c != chunk for c in range(len(good))], [True] * len(good))
                if good.all():
                    passed += 1
                    again = encoded(codes, message.phases, message.counts, classes, message.tables, 5, 2)
                    assert torch.equal(again.words, words)
    assert passed <= len(octets) // 10


def test_attacks_end_alike_on_both_backends():
    for seed in range(60):
        attack(seed)

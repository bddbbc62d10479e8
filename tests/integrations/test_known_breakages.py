"""Known ways in which such software breaks, and the test of each; those that have no better home are here."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import thinwire
from ddp_nets import backward, build
from samples import tensors
from thinwire import ddp
from thinwire.collectives import all_reduce
from thinwire.errors import RegistrationError
from workers import Workers, workers

TESTS = Path(__file__).parents[1]
FEEDBACK, TRAVEL, DDP = (f"integrations/test_{name}.py" for name in ("error_feedback", "travel", "ddp"))
STATE, REGISTRATION, HERE = (f"integrations/test_{name}.py" for name in ("state", "registration", "known_breakages"))
FAILURES, SCATTER = "collectives/test_failures.py", "collectives/test_reduce_scatter.py"

SCENARIOS = {
    "pytorch#55738: an all-zero bucket": f"{FEEDBACK}::"
    "test_an_all_zero_bucket_stays_exactly_zero_and_keeps_its_residual",
    "THUDM/slime#2256: an all-zero block among good ones": "schemes/test_conformance.py::"
    "test_zeros_decode_to_exact_zeros_beside_other_blocks",
    "pytorch#49374: one rank has an infinite gradient in one step": f"{FEEDBACK}::"
    "test_a_non_finite_gradient_on_one_rank_reaches_all_and_the_next_step_is_normal",
    "pytorch#51427: error feedback from the first step, across rebuilt buckets": f"{FEEDBACK}::"
    "test_residuals_follow_parameters_through_rebuilt_buckets_and_every_mode_of_ddp",
    "the first bucket changes its dtype and order": f"{FEEDBACK}::"
    "test_residuals_follow_parameters_through_rebuilt_buckets_and_every_mode_of_ddp",
    "pytorch#75031: a result of another dtype or length": f"{DDP}::"
    "test_the_result_is_the_bucket_itself_and_of_its_count_and_dtype",
    "pytorch#43307: the returned tensor is the bucket or not, over several steps": f"{DDP}::"
    "test_gradients_are_the_mean_of_the_frames_and_parameters_equal_on_all_ranks",
    "accelerate#3679: a static graph, then no_sync": f"{HERE}::"
    "test_no_sync_before_the_first_step_of_a_static_graph_is_explained",
    "pytorch#63768: steps counted by buckets": f"{TRAVEL}::test_steps_are_counted_once_whatever_buckets_and_no_sync_do",
    "pytorch#58467: nothing is left over to send plainly": f"{TRAVEL}::"
    "test_keeping_every_parameter_leaves_no_empty_collective",
    "pytorch#138816: gathered results are nested or flat": "collectives/test_all_reduce.py::"
    "test_the_mean_is_that_of_the_decoded_frames_to_the_bit_on_all_ranks",
    "pytorch#140044: a buffer is freed while it is being sent": f"{HERE}::"
    "test_values_dropped_at_once_arrive_all_the_same",
    "DeepSpeed#5056, #3864, #4386: odd counts, three ranks, three nodes": f"{HERE}::"
    "test_odd_counts_over_three_ranks_and_three_nodes",
    "DeepSpeed#3827: a payload at an unaligned address": "wire/test_frames.py::"
    "test_a_frame_at_an_odd_place_in_memory_decodes",
    "DeepSpeed#4852: a bfloat16 model": f"{DDP}::"
    "test_gradients_are_the_mean_of_the_frames_and_parameters_equal_on_all_ranks",
    "DeepSpeed's adam.py: residuals are lost when resuming": f"{STATE}::"
    "test_resume_is_exact_to_the_bit_and_loads_with_weights_only",
    "pytorch#75666: a state that does not load": f"{STATE}::test_distributed_checkpoints_keep_every_ranks_residuals",
    "gpt-neox#128: uncompressed in silence": f"{TRAVEL}::"
    "test_sparse_complex_empty_and_scalar_parameters_pass_through_with_one_log_line",
    "DeepSpeed's qgZ: no compression on one node, in silence": f"{HERE}::"
    "test_one_node_alone_is_averaged_plainly_and_says_so",
    "grace#10: an option without effect": f"{REGISTRATION}::test_what_cannot_work_is_refused_at_registration",
    "grace#2: scalars in collectives": "collectives/test_all_reduce.py::"
    "test_the_mean_is_that_of_the_decoded_frames_to_the_bit_on_all_ranks",
    "grace's qsgd: bfloat16 and float16 gradients": f"{DDP}::"
    "test_the_result_is_the_bucket_itself_and_of_its_count_and_dtype",
    "NVFlare#3222: several receivers get each other's frames": f"{SCATTER}::"
    "test_the_mean_is_that_of_both_legs_frames_to_the_bit_on_all_ranks",
    "mxnet#20007: ranks disagree on an option": f"{REGISTRATION}::test_ranks_that_disagree_are_all_told",
    "hivemind#450: a single rank": f"{TRAVEL}::test_a_world_of_one_still_trains",
    "bitsandbytes#1587: inputs are written to": f"{SCATTER}::"
    "test_the_mean_is_that_of_both_legs_frames_to_the_bit_on_all_ranks",
    "nccl-tests#37: more than 2^31 values": "collectives/test_large.py::"
    "test_kernels_read_and_write_beyond_2_to_the_31_values",
    "more than one collective can move": "collectives/test_large.py::"
    "test_what_exceeds_one_collective_goes_in_several",
    "torchft#203: a tensor that is never sent, or sent twice": "collectives/test_shards.py::"
    "test_every_value_belongs_to_exactly_one_rank",
    "torch_cgx#5: the program's own all_reduce is compressed": f"{DDP}::"
    "test_the_programs_own_collectives_are_not_touched",
    "torch_cgx: layers are known from the second step only": f"{FEEDBACK}::"
    "test_residuals_follow_parameters_through_rebuilt_buckets_and_every_mode_of_ddp",
    "cosmos-framework#161: accumulation is lost": f"{DDP}::"
    "test_gradients_are_the_mean_of_the_frames_and_parameters_equal_on_all_ranks",
    "pytorch#114194: going on after a failure": f"{REGISTRATION}::"
    "test_a_failure_in_one_ranks_hook_ends_backward_on_all_with_its_cause",
    "a hook raises on one rank only": f"{REGISTRATION}::"
    "test_a_failure_in_one_ranks_hook_ends_backward_on_all_with_its_cause",
    "a rank is killed": f"{FAILURES}::test_when_a_rank_is_killed_the_others_end_at_once",
    "a rank hangs": f"{FAILURES}::test_a_rank_that_hangs_ends_the_others_at_the_groups_time_limit",
    "two threads on one gloo group swap their results": "collectives/test_channel.py::"
    "test_jobs_run_one_by_one_in_order_on_one_other_thread",
    "Bagua: tiny gradients are flattened": f"{HERE}::test_tiny_gradients_are_not_flattened",
    "globally unused parameters: what is sent for them is thrown away": f"{FEEDBACK}::"
    "test_an_all_zero_bucket_stays_exactly_zero_and_keeps_its_residual",
    "backward twice without no_sync": f"{FEEDBACK}::test_two_synchronized_backward_passes_keep_ranks_equal",
    "the python reducer": f"{REGISTRATION}::test_the_python_reducer_is_refused",
    "ColossalAI#6025: torch.compile": "integrations/test_compile.py::test_a_compiled_model_trains_as_one_that_is_not",
    "ColossalAI#6387: a shape that does not fit": f"{HERE}::test_odd_counts_over_three_ranks_and_three_nodes",
    "pytorch#155903: ranks and nodes are divided by, one or the other": f"{HERE}::"
    "test_sums_are_divided_by_the_number_of_ranks_exactly_once",
    "VeOmni#1167: divided twice, or not at all": f"{HERE}::test_sums_are_divided_by_the_number_of_ranks_exactly_once",
}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_known_breakage_has_its_test(scenario: str) -> None:
    file, _, name = SCENARIOS[scenario].partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def static_graph_job(rank: int, n: int) -> None:
    model = build("mlp", bucket_cap_mb=0.01, static_graph=True)
    handle = ddp.register(model, thinwire.ORQ())
    with pytest.raises(RegistrationError, match="first backward pass must synchronize"):
        backward(model, rank, 0, accumulate_first=True)
    for step in range(4):  # nothing is lost: it goes on, also with no_sync
        backward(model, rank, step, accumulate_first=step > 0)
    assert handle.stats().steps == 4
    handle.close()


def test_no_sync_before_the_first_step_of_a_static_graph_is_explained(team: Workers) -> None:
    team.run(static_graph_job)


def dropped_job(rank: int, n: int, algorithm: str) -> None:
    """Nobody but the exchange holds the values, and others of the same size are made and freed meanwhile."""
    options = {"algorithm": algorithm, "ranks_per_node": 2 if algorithm == "hierarchical" else None}
    futures = []
    for call in range(8):
        futures.append(all_reduce(torch.full((30_000,), float(call)), thinwire.ORQ(), async_op=True, **options))
        torch.full((30_000,), -1.0)
    for call, future in enumerate(futures):
        assert torch.equal(future.wait(), torch.full((30_000,), float(call)))


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter", "hierarchical"])
def test_values_dropped_at_once_arrive_all_the_same(four: Workers, algorithm: str) -> None:
    four.run(dropped_job, algorithm)


def odd_job(rank: int, n: int, algorithm: str) -> None:
    own, nodes = tensors(rank), 1 if algorithm == "hierarchical" else None
    for scheme, most in ((thinwire.NoCompression(), 1e-4), (thinwire.ORQ(levels=9), 0.2)):
        means = all_reduce(own, scheme, algorithm=algorithm, ranks_per_node=nodes)
        for name, mean in means.items():
            true = torch.stack([tensors(r)[name].double() for r in range(n)]).mean(0)
            assert mean.shape == true.shape
            error = (mean.double() - true).square().sum()
            assert error <= most * true.square().sum(), (name, error, true.square().sum())


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter", "hierarchical"])
def test_odd_counts_over_three_ranks_and_three_nodes(algorithm: str) -> None:
    workers(3).run(odd_job, algorithm)


def divided_job(rank: int, n: int, algorithm: str, plain: bool) -> None:
    """The gradients of a rank are all alike, 1, 2, 3 or 4, so that encoding loses nothing."""
    model = DistributedDataParallel(torch.nn.Linear(40, 40, bias=False))
    nodes = 2 if algorithm == "hierarchical" else None
    handle = ddp.register(model, thinwire.MinMax(levels=3), algorithm=algorithm, ranks_per_node=nodes)
    handle.enabled = not plain
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 40), rank + 1.0)).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.full((40, 40), 2.5))
    handle.close()


@pytest.mark.parametrize("plain", [False, True], ids=["encoded", "switched off"])
@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter", "hierarchical"])
def test_sums_are_divided_by_the_number_of_ranks_exactly_once(four: Workers, algorithm: str, plain: bool) -> None:
    four.run(divided_job, algorithm, plain)


def tiny_job(rank: int, n: int, algorithm: str) -> None:
    """A gradient and the same times 2^-100 have averages that differ by just that factor."""
    grads = []
    for scale in (1.0, 2.0**-100):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(60, 60))
        options = {"algorithm": algorithm, "error_feedback": True}
        handle = ddp.register(model, thinwire.ORQ(levels=5), min_values=1, **options)
        for step in range(3):
            model.zero_grad()
            x = torch.randn(5, 60, generator=torch.Generator().manual_seed(10 * step + rank))
            (model(x).sum() * scale).backward()
        grads.append([parameter.grad / scale for parameter in model.parameters()])
        handle.close()
    for a, b in zip(*grads):
        assert torch.equal(a, b)
        assert a.any()


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_tiny_gradients_are_not_flattened(four: Workers, algorithm: str) -> None:
    four.run(tiny_job, algorithm)


def one_node_job(rank: int, n: int) -> None:
    plain, model = build("mlp"), build("mlp")
    records: list[str] = []
    catcher = logging.Handler()
    catcher.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(catcher)
    handle = ddp.register(model, thinwire.ORQ(), algorithm="hierarchical", ranks_per_node=n)
    logging.getLogger("thinwire").removeHandler(catcher)
    assert records == ["hierarchical: all ranks form one node, within which values travel uncompressed"]
    for each in (plain, model):
        backward(each, rank, 0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters()))
    assert handle.stats().uncompressed == {"one node": 1.0}
    assert "one node" in str(handle.plan())
    handle.close()
    with pytest.raises(RegistrationError, match="strict: all ranks form one node"):
        ddp.register(build("mlp"), thinwire.ORQ(), algorithm="hierarchical", ranks_per_node=n, strict=True)


def test_one_node_alone_is_averaged_plainly_and_says_so(two: Workers) -> None:
    two.run(one_node_job)

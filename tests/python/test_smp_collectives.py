"""Ranks, groups and exchange of objects, as SMP's documents say."""

import pytest
from autopart import smp
from autopart.smp.state import Layout, read_config
from ranks import RankError


def test_cluster_and_spread_lay_ranks_out_as_documented():
    cluster = Layout.of(read_config({"pipeline_parallel_degree": 2}), 8)
    assert [cluster.pp_group(d) for d in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [cluster.dp_group(p) for p in range(2)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    spread = Layout.of(read_config({"partitions": 2, "placement_strategy": "spread"}), 8)
    assert [spread.pp_group(d) for d in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [spread.dp_group(p) for p in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for layout in (cluster, spread):
        for rank in range(8):
            assert layout.rank_of(layout.pp_rank(rank), layout.dp_rank(rank)) == rank


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pipeline_parallel_degree": 0}, "positive integer"),
        ({"microbatches": "2"}, "positive integer"),
        ({"pipeline": "zigzag"}, "not one of simple, interleaved"),
        ({"partitions": 2, "pipeline_parallel_degree": 4}, "contradicts"),
        ({"tensor_parallel_degree": 2}, "not supported yet"),
        ({"auto_partition": False}, "needs default_partition"),
        ({"auto_partition": False, "default_partition": 2, "partitions": 2}, "not in 0 ... 1"),
        ({"placement_strategy": "DP"}, "order of the letters"),
    ],
)
def test_bad_configuration_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        read_config(config)


def test_unknown_keys_warn_and_the_environment_wins(monkeypatch):
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", '{"microbatches": 4}')
    with pytest.warns(UserWarning, match="'overlapping_allreduce'"):
        config = read_config({"microbatches": 2, "overlapping_allreduce": True})
    assert config.microbatches == 4


def test_a_world_that_the_degree_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"3 processes cannot be split into pipelines of 2"):
        Layout.of(read_config({"pipeline_parallel_degree": 2}), 3)


def test_before_init_there_is_one_clear_error():
    with pytest.raises(RuntimeError, match=r"smp\.init"):
        smp.rank()


def exchange(transport):
    smp.init({"pipeline_parallel_degree": 2, "transport": transport})
    me = smp.rank()
    assert smp.state.comm.transport == (transport or "shared memory")
    assert (smp.size(), smp.pp_size(), smp.dp_size()) == (4, 2, 2)
    assert (smp.pp_rank(), smp.dp_rank()) == (me % 2, me // 2)
    everyone = smp.allgather({"rank": me, "text": "x" * me * 100000})
    assert [e["rank"] for e in everyone] == [0, 1, 2, 3]
    assert len(everyone[3]["text"]) == 300000
    assert smp.allgather(me, smp.PP_GROUP) == smp.get_pp_group()
    assert smp.allgather(me, smp.DP_GROUP) == smp.get_dp_group()
    if smp.pp_rank() == 0:
        smp.broadcast([me, "hello"], smp.PP_GROUP)
    else:
        assert smp.recv_from(0, smp.RankType.PP_RANK) == [me - 1, "hello"]
    if me == 3:
        smp.send("to two", 2)
    if me == 2:
        assert smp.recv_from(3) == "to two"
    smp.barrier()
    smp.barrier(smp.DP_GROUP)
    return me


@pytest.mark.parametrize("transport", ["shared memory", "gloo"])
def test_objects_travel_in_groups(ranks, transport):
    assert ranks.run(4, "test_smp_collectives:exchange", transport=transport) == [0, 1, 2, 3]


def wrong_world():
    smp.init({"pipeline_parallel_degree": 2})


def test_every_rank_is_told_that_the_degree_does_not_divide_the_world(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(3, "test_smp_collectives:wrong_world")
    assert all(e[0] == "ValueError" and "3 processes" in e[1] for e in caught.value.errors)

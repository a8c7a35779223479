// One suite for all byte transports.
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/transports/in_process.h"
#include "runtime/transports/waiting_communicator.h"
#include "tests/runtime/transports/ranks.h"

namespace autopart {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Clock::time_point In(Clock::duration duration) { return Clock::now() + duration; }
Clock::time_point Soon() { return In(seconds(60)); }

// Bytes that tell message and position.
std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::vector<int> Everyone(int size) {
  std::vector<int> group(size);
  std::iota(group.begin(), group.end(), 0);
  return group;
}

void AddFloats(Bytes sum, ConstBytes other) {
  ASSERT_EQ(sum.size(), other.size());
  auto* to = reinterpret_cast<float*>(sum.data());
  auto* from = reinterpret_cast<const float*>(other.data());
  for (size_t i = 0; i < sum.size() / sizeof(float); ++i) to[i] += from[i];
}

CommunicationError ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommunicationError& error) {
    return error;
  }
  ADD_FAILURE() << "the call did not fail";
  return CommunicationError(CommunicationError::Kind::kTransport, -1, "");
}

class TransportTest : public ::testing::TestWithParam<Transport> {
 protected:
  void Run(int size, const RankFunction& function, int killed = -1) {
    RunRanks(GetParam(), size, function, killed);
  }
  bool processes() const { return GetParam() == Transport::kSharedMemoryProcesses; }
};

TEST_P(TransportTest, MessagesOfEverySizeArriveWhole) {
  const std::vector<size_t> sizes = {
      0, 1, 7, 64, 255, 4096, 65537, 1 << 20, (4 << 20) - 1, (4 << 20) + 1, 32 << 20};
  Run(2, [&](Communicator& ranks) {
    EXPECT_EQ(ranks.size(), 2);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::vector<std::byte> expected = Pattern(sizes[i], i);
      if (ranks.rank() == 0) {
        ranks.Send(1, {expected}, Soon());
      } else {
        std::vector<std::byte> received(sizes[i]);
        ranks.Receive(0, {received}, Soon());
        EXPECT_TRUE(received == expected) << sizes[i] << " bytes";
      }
    }
  });
}

TEST_P(TransportTest, BothSendLargeMessagesFirst) {
  const size_t size = 32 << 20;
  Run(2, [&](Communicator& ranks) {
    const int me = ranks.rank();
    const std::vector<std::byte> mine = Pattern(size, me);
    std::vector<std::byte> theirs(size);
    auto send = ranks.StartSend(1 - me, {mine});
    auto receive = ranks.StartReceive(1 - me, {theirs});
    send->Wait(Soon());
    receive->Wait(Soon());
    EXPECT_TRUE(theirs == Pattern(size, 1 - me));
  });
}

TEST_P(TransportTest, PiecesNeedNotMatch) {
  Run(2, [&](Communicator& ranks) {
    const std::vector<std::byte> expected = Pattern(1000, 5);
    if (ranks.rank() == 0) {
      const ConstBytes all(expected);
      ranks.Send(1, {all.subspan(0, 16), {}, all.subspan(16, 484)}, Soon());
      ranks.Send(1, {all.subspan(500)}, Soon());
    } else {
      std::vector<std::byte> received(1000);
      const Bytes all(received);
      auto a = ranks.StartReceive(0, {all.subspan(0, 3)});
      auto b = ranks.StartReceive(0, {all.subspan(3, 700), all.subspan(703)});
      b->Wait(Soon());
      EXPECT_TRUE(a->Poll());
      EXPECT_TRUE(received == expected);
    }
  });
}

TEST_P(TransportTest, ManyOperationsArePendingAndWaitedForInAnyOrder) {
  constexpr int kCount = 200;
  Run(3, [&](Communicator& ranks) {
    const int me = ranks.rank();
    std::vector<std::vector<std::byte>> out, in;
    std::vector<std::unique_ptr<Operation>> pending;
    std::vector<int> sources;
    for (int i = 0; i < kCount; ++i) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == me) continue;
        out.push_back(Pattern(i * 97, me * 1000 + peer * 100000 + i));
        in.emplace_back(i * 97);
        sources.push_back(peer);
        pending.push_back(ranks.StartReceive(peer, {in.back()}));
        pending.push_back(ranks.StartSend(peer, {out.back()}));
      }
    }
    std::mt19937 random(me);
    std::shuffle(pending.begin(), pending.end(), random);
    for (auto& operation : pending) operation->Wait(Soon());
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(in[i] ==
                  Pattern(in[i].size(), sources[i] * 1000 + me * 100000 + in[i].size() / 97));
    }
  });
}

TEST_P(TransportTest, PollingAloneFinishesAMessage) {
  Run(2, [&](Communicator& ranks) {
    std::vector<std::byte> data = Pattern(9 << 20, 1);
    if (ranks.rank() == 1) std::fill(data.begin(), data.end(), std::byte{0});
    auto operation = ranks.rank() == 0 ? ranks.StartSend(1, {data}) : ranks.StartReceive(0, {data});
    while (!operation->Poll()) std::this_thread::yield();
    EXPECT_TRUE(data == Pattern(9 << 20, 1));
  });
}

TEST_P(TransportTest, RandomTrafficArrivesInOrder) {
  for (const int seed : {1, 2, 3, 4}) {
    const int size = 2 + seed % 4;
    SCOPED_TRACE("seed " + std::to_string(seed));
    // Each rank draws the whole traffic, then plays its part of it.
    struct Transfer {
      int from, to;
      size_t bytes;
    };
    std::mt19937 random(seed);
    std::vector<Transfer> traffic(300);
    for (Transfer& transfer : traffic) {
      transfer.from = random() % size;
      transfer.to = (transfer.from + 1 + random() % (size - 1)) % size;
      const int magnitude = random() % 20;
      transfer.bytes = random() % ((size_t{1} << magnitude) + 1);
    }
    Run(size, [&](Communicator& ranks) {
      const int me = ranks.rank();
      std::mt19937 order(seed * 100 + me);
      std::vector<std::unique_ptr<Operation>> pending;
      std::vector<std::vector<std::byte>> buffers(traffic.size());
      for (size_t i = 0; i < traffic.size(); ++i) {
        const Transfer& transfer = traffic[i];
        if (transfer.from == me) {
          buffers[i] = Pattern(transfer.bytes, i);
          const ConstBytes data(buffers[i]);
          const size_t middle = transfer.bytes == 0 ? 0 : order() % transfer.bytes;
          pending.push_back(
              ranks.StartSend(transfer.to, {data.subspan(0, middle), data.subspan(middle)}));
        } else if (transfer.to == me) {
          buffers[i].resize(transfer.bytes);
          pending.push_back(ranks.StartReceive(transfer.from, {buffers[i]}));
        }
        if (pending.size() > 20) {
          const size_t choice = order() % pending.size();
          if (pending[choice]->Poll()) pending.erase(pending.begin() + choice);
        }
      }
      for (auto& operation : pending) operation->Wait(Soon());
      for (size_t i = 0; i < traffic.size(); ++i) {
        if (traffic[i].to == me) {
          EXPECT_TRUE(buffers[i] == Pattern(traffic[i].bytes, i)) << "transfer " << i;
        }
      }
    });
  }
}

TEST_P(TransportTest, AllReduceAddsInRankOrderWithEqualBitsEverywhere) {
  for (const int size : {1, 2, 3, 5}) {
    for (const size_t count : {0, 1, 3, 1000, 1 << 20, (1 << 20) + 7}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(count) + " floats");
      auto values = [count](int rank) {
        std::mt19937 random(rank + 1);
        std::vector<float> result(count);
        for (float& value : result) value = std::ldexp(float(random()), int(random() % 60) - 60);
        return result;
      };
      std::vector<float> expected = values(0);
      for (int rank = 1; rank < size; ++rank) {
        const std::vector<float> other = values(rank);
        for (size_t i = 0; i < count; ++i) expected[i] += other[i];
      }
      Run(size, [&](Communicator& ranks) {
        std::vector<float> data = values(ranks.rank());
        ranks.AllReduce(Everyone(size), std::as_writable_bytes(std::span(data)), sizeof(float),
                        AddFloats, Soon());
        EXPECT_TRUE(count == 0 ||
                    std::memcmp(data.data(), expected.data(), count * sizeof(float)) == 0);
      });
    }
  }
}

TEST_P(TransportTest, CollectivesWorkOnGroupsOfSomeRanks) {
  Run(5, [&](Communicator& ranks) {
    const int me = ranks.rank();
    const std::vector<int> odd = {1, 3}, even = {0, 2, 4}, all = Everyone(5);
    const std::vector<int>& mine = me % 2 ? odd : even;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> sum = {float(me), 1};
      ranks.AllReduce(mine, std::as_writable_bytes(std::span(sum)), sizeof(float), AddFloats,
                      Soon());
      EXPECT_EQ(sum[0], me % 2 ? 4 : 6);
      EXPECT_EQ(sum[1], float(mine.size()));

      const size_t bytes = 1 + round * 1000;
      std::vector<std::byte> data = Pattern(bytes, me == 2 ? 7 : 0);
      ranks.Broadcast(all, 2, data, Soon());
      EXPECT_TRUE(data == Pattern(bytes, 7));

      const std::vector<std::byte> own = Pattern(bytes, me);
      std::vector<std::byte> gathered(bytes * mine.size());
      ranks.AllGather(mine, own, gathered, Soon());
      for (size_t i = 0; i < mine.size(); ++i) {
        const std::vector<std::byte> part(gathered.begin() + i * bytes,
                                          gathered.begin() + (i + 1) * bytes);
        EXPECT_TRUE(part == Pattern(bytes, mine[i]));
      }
      ranks.Barrier(all, Soon());
    }
  });
}

TEST_P(TransportTest, CollectivesDoNotMixWithMessages) {
  Run(2, [&](Communicator& ranks) {
    const int me = ranks.rank();
    std::vector<std::byte> message = Pattern(6 << 20, me), received(6 << 20);
    // One posts its receive long before the other sends; both reduce in between.
    std::unique_ptr<Operation> receive, send;
    if (me == 0) receive = ranks.StartReceive(1, {received});
    if (me == 0) send = ranks.StartSend(1, {message});
    float one = 1;
    ranks.AllReduce(Everyone(2), std::as_writable_bytes(std::span(&one, 1)), sizeof(float),
                    AddFloats, Soon());
    EXPECT_EQ(one, 2);
    if (me == 1) send = ranks.StartSend(0, {message});
    if (me == 1) receive = ranks.StartReceive(0, {received});
    receive->Wait(Soon());
    send->Wait(Soon());
    EXPECT_TRUE(received == Pattern(6 << 20, 1 - me));
  });
}

TEST_P(TransportTest, StartedCollectivesAreWaitedForInAnyOrder) {
  Run(3, [&](Communicator& ranks) {
    const std::vector<int> all = Everyone(3), pair = {0, 2};
    std::vector<float> a(5000, float(ranks.rank())), b(70000, 1), c(10, 2);
    auto first = ranks.StartAllReduce(all, std::as_writable_bytes(std::span(a)), 4, AddFloats);
    std::unique_ptr<Operation> second;
    if (ranks.rank() != 1) {
      second = ranks.StartAllReduce(pair, std::as_writable_bytes(std::span(b)), 4, AddFloats);
    }
    auto third = ranks.StartAllReduce(all, std::as_writable_bytes(std::span(c)), 4, AddFloats);
    auto last = ranks.StartBarrier(all);
    last->Wait(Soon());
    third->Wait(Soon());
    if (second) second->Wait(Soon());
    first->Wait(Soon());
    EXPECT_EQ(a, std::vector<float>(5000, 3));
    EXPECT_EQ(b, std::vector<float>(70000, ranks.rank() == 1 ? 1 : 2));
    EXPECT_EQ(c, std::vector<float>(10, 6));
  });
}

TEST_P(TransportTest, AWaitEndsAtItsDeadlineAndClosesTheCommunicator) {
  Run(2, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      std::vector<std::byte> data(100);
      auto receive = ranks.StartReceive(1, {data});
      const Clock::time_point start = Clock::now();
      const CommunicationError error = ErrorOf([&] { receive->Wait(In(milliseconds(100))); });
      EXPECT_GE(Clock::now() - start, milliseconds(100));
      EXPECT_LT(Clock::now() - start, milliseconds(2000));
      EXPECT_EQ(error.kind(), CommunicationError::Kind::kDeadline);
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("receive of 100 bytes from rank 1"));
      // Every later call throws the same.
      EXPECT_STREQ(ErrorOf([&] { ranks.StartSend(1, {data}); }).what(), error.what());
      EXPECT_STREQ(ErrorOf([&] { ranks.Barrier(Everyone(2), Soon()); }).what(), error.what());
      EXPECT_STREQ(ErrorOf([&] { receive->Poll(); }).what(), error.what());
      ranks.Abort({0, "stage 0, RECV_B1: out of time"});
    } else {
      std::vector<std::byte> data(1);
      const CommunicationError error = ErrorOf([&] { ranks.Receive(0, {data}, Soon()); });
      EXPECT_EQ(error.kind(), CommunicationError::Kind::kAborted);
      EXPECT_EQ(error.peer(), 0);
      EXPECT_THAT(error.what(), HasSubstr("stage 0, RECV_B1: out of time"));
    }
  });
}

TEST_P(TransportTest, ADeadlineEndsCollectivesAndSends) {
  Run(2, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      const CommunicationError error =
          ErrorOf([&] { ranks.Barrier(Everyone(2), In(milliseconds(50))); });
      EXPECT_EQ(error.kind(), CommunicationError::Kind::kDeadline);
      EXPECT_EQ(error.peer(), 1);
      EXPECT_THAT(error.what(), HasSubstr("barrier"));
    } else {
      const std::vector<std::byte> data(16 << 20);
      const CommunicationError error =
          ErrorOf([&] { ranks.Send(0, {data}, In(milliseconds(50))); });
      EXPECT_EQ(error.kind(), CommunicationError::Kind::kDeadline);
      EXPECT_THAT(error.what(), HasSubstr("send of 16777216 bytes to rank 0"));
    }
    std::this_thread::sleep_for(milliseconds(500));  // leaving is not what ends the other's wait
  });
}

TEST_P(TransportTest, AnAbortUnblocksEveryoneWithTheFirstCause) {
  Run(4, [&](Communicator& ranks) {
    std::vector<std::byte> data(64);
    const Clock::time_point start = Clock::now();
    switch (ranks.rank()) {
      case 0:
        std::this_thread::sleep_for(milliseconds(100));
        ranks.Abort({0, "stage 1, 1F2: index out of range in aten::embedding"});
        ranks.Abort({0, "a later cause"});
        EXPECT_THAT(ErrorOf([&] { ranks.StartReceive(1, {data}); }).what(),
                    HasSubstr("1F2: index out of range"));
        break;
      case 1:
        EXPECT_THAT(ErrorOf([&] { ranks.Receive(0, {data}, Soon()); }).what(),
                    HasSubstr("rank 0 failed: stage 1, 1F2: index out of range"));
        ranks.Abort({1, "a consequence"});
        break;
      case 2:
        EXPECT_EQ(ErrorOf([&] { ranks.Barrier(Everyone(4), Soon()); }).kind(),
                  CommunicationError::Kind::kAborted);
        break;
      case 3: {
        std::vector<std::byte> large(16 << 20);
        EXPECT_EQ(ErrorOf([&] { ranks.Send(0, {large}, Soon()); }).peer(), 0);
        break;
      }
    }
    EXPECT_LT(Clock::now() - start, milliseconds(1500));
    while (!ranks.aborted()) std::this_thread::yield();
    EXPECT_EQ(ranks.aborted()->rank, 0);
    EXPECT_THAT(ranks.DescribeFailure(), HasSubstr("rank 0 failed: stage 1, 1F2"));
    EXPECT_THAT(ranks.aborted()->what, HasSubstr("index out of range"));
  });
}

TEST_P(TransportTest, AnyThreadMayAbort) {
  Run(2, [&](Communicator& ranks) {
    std::vector<std::byte> data(64);
    std::thread other;
    if (ranks.rank() == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(50));
        ranks.Abort({0, "a signal"});
      });
    }
    EXPECT_THAT(ErrorOf([&] { ranks.Receive(1 - ranks.rank(), {data}, Soon()); }).what(),
                HasSubstr("a signal"));
    if (other.joinable()) other.join();
  });
}

// A collective looks for problems part by part, so a part must not report a peer that went after it
// had sent everything.
TEST_P(TransportTest, ALeftPeerIsNoProblemForAMessageThatIsHere) {
  Run(2, [&](Communicator& ranks) {
    std::vector<std::byte> data(1000);
    if (ranks.rank() == 1) {
      const std::vector<std::byte> sent = Pattern(1000, 3);
      return ranks.Send(0, {sent}, Soon());
    }
    const auto operation = ranks.StartReceive(1, {data});
    std::this_thread::sleep_for(milliseconds(100));  // rank 1 sends and leaves
    const auto problem = dynamic_cast<internal::WaitingOperation&>(*operation).Problem();
    EXPECT_FALSE(problem.has_value()) << problem->what();
    operation->Wait(Soon());
    EXPECT_EQ(data, Pattern(1000, 3));
  });
}

TEST_P(TransportTest, WhatARankSentBeforeItLeftStillArrives) {
  Run(2, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      const std::vector<std::byte> data = Pattern(1000, 3);
      ranks.Send(1, {data}, Soon());
    } else {
      std::vector<std::byte> data(1000);
      if (GetParam() != Transport::kThreads) std::this_thread::sleep_for(milliseconds(100));
      ranks.Receive(0, {data}, Soon());
      EXPECT_TRUE(data == Pattern(1000, 3));
    }
  });
}

TEST_P(TransportTest, AGroupOfOneAnswersAtOnce) {
  Run(1, [&](Communicator& ranks) {
    std::vector<std::byte> data = Pattern(100, 1), all(100);
    ranks.Broadcast(Everyone(1), 0, data, Soon());
    ranks.AllGather(Everyone(1), data, all, Soon());
    EXPECT_TRUE(all == data);
    ranks.Barrier(Everyone(1), Soon());
  });
}

TEST_P(TransportTest, WrongArgumentsAreNamed) {
  Run(2, [&](Communicator& ranks) {
    std::vector<std::byte> data(6);
    EXPECT_THROW(ranks.StartSend(2, {data}), std::invalid_argument);
    EXPECT_THROW(ranks.StartReceive(ranks.rank(), {data}), std::invalid_argument);
    EXPECT_THROW(ranks.StartBarrier(std::vector<int>{1, 0}), std::invalid_argument);
    EXPECT_THROW(ranks.StartBarrier(std::vector<int>{1 - ranks.rank()}), std::invalid_argument);
    EXPECT_THROW(ranks.StartAllReduce(Everyone(2), data, 4, AddFloats), std::invalid_argument);
    EXPECT_THROW(ranks.StartAllGather(Everyone(2), data, data), std::invalid_argument);
    ranks.Barrier(Everyone(2), Soon());  // still open
  });
}

TEST_P(TransportTest, MembersThatCallDifferentCollectivesAreTold) {
  Run(2, [&](Communicator& ranks) {
    std::vector<float> data(ranks.rank() == 0 ? 4 : 8);
    const CommunicationError error = ErrorOf([&] {
      ranks.AllReduce(Everyone(2), std::as_writable_bytes(std::span(data)), 4, AddFloats, Soon());
    });
    if (error.kind() == CommunicationError::Kind::kAborted) return;
    EXPECT_EQ(error.kind(), CommunicationError::Kind::kTransport);
    EXPECT_THAT(error.what(), HasSubstr("16 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("32 bytes"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         ::testing::Values(Transport::kThreads, Transport::kSharedMemoryThreads,
                                           Transport::kSharedMemoryProcesses),
                         [](const auto& info) { return Name(info.param); });

TEST(InProcessTest, OneThreadPlaysAllRanks) {
  auto ranks = MakeInProcessGroup(3);
  const std::vector<int> all = Everyone(3);
  std::vector<std::byte> out = Pattern(1 << 20, 1), in(1 << 20);
  auto send = ranks[0]->StartSend(2, {out});
  EXPECT_FALSE(send->Poll());
  auto receive = ranks[2]->StartReceive(0, {in});
  receive->Wait(Clock::now());
  send->Wait(Clock::now());
  EXPECT_TRUE(in == out);

  std::vector<std::vector<float>> data(3);
  std::vector<std::unique_ptr<Operation>> sums;
  for (int rank = 0; rank < 3; ++rank) {
    data[rank].assign(100000, float(rank));
    sums.push_back(ranks[rank]->StartAllReduce(all, std::as_writable_bytes(std::span(data[rank])),
                                               4, AddFloats));
    EXPECT_EQ(sums[rank]->Poll(), rank == 2);
  }
  for (auto& sum : sums) sum->Wait(Clock::now());
  for (const auto& values : data) EXPECT_EQ(values, std::vector<float>(100000, 3));
}

TEST(InProcessTest, ADestroyedRankIsMissed) {
  auto ranks = MakeInProcessGroup(3);
  std::vector<std::byte> data(8);
  auto receive = ranks[0]->StartReceive(1, {data});
  auto barrier = ranks[2]->StartBarrier(Everyone(3));
  ranks[1].reset();
  const CommunicationError error = ErrorOf([&] { receive->Wait(Soon()); });
  EXPECT_EQ(error.kind(), CommunicationError::Kind::kPeerDied);
  EXPECT_EQ(error.peer(), 1);
  EXPECT_EQ(ErrorOf([&] { barrier->Wait(Soon()); }).peer(), 1);
}

TEST(InProcessTest, AMessageDroppedHalfWayIsMissed) {
  auto ranks = MakeInProcessGroup(2);
  std::vector<std::byte> data(8), more(16);
  auto send = ranks[0]->StartSend(1, {more});
  {
    auto receive = ranks[1]->StartReceive(0, {data});
    receive->Wait(Soon());
  }
  send.reset();
  auto receive = ranks[1]->StartReceive(0, {data});
  EXPECT_EQ(ErrorOf([&] { receive->Wait(Soon()); }).kind(), CommunicationError::Kind::kTransport);
}

TEST(InProcessTest, ANewGroupWorksAfterAFailedOne) {
  for (int round = 0; round < 3; ++round) {
    RunRanks(Transport::kThreads, 2, [&](Communicator& ranks) {
      std::vector<std::byte> data(8);
      EXPECT_THROW(ranks.Receive(1 - ranks.rank(), {data}, In(milliseconds(10))),
                   CommunicationError);
    });
  }
}

}  // namespace
}  // namespace autopart

// What only the shared-memory transport promises: life and death of processes and of /dev/shm.
#include "runtime/transports/shared_memory.h"

#include <csignal>
#include <cstdio>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/transports/process_watch.h"
#include "tests/runtime/transports/ranks.h"

namespace autopart {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = CommunicationError::Kind;

Clock::time_point Soon() { return Clock::now() + seconds(60); }

std::vector<std::string> LeftInSharedMemory() {
  std::vector<std::string> names;
  DIR* directory = opendir("/dev/shm");
  const std::string mine =
      "autopart-" + std::to_string(getuid()) + "-test-" + std::to_string(getpid()) + "-";
  while (const dirent* entry = readdir(directory)) {
    if (std::string(entry->d_name).starts_with(mine)) names.push_back(entry->d_name);
  }
  closedir(directory);
  return names;
}

CommunicationError ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommunicationError& error) {
    return error;
  }
  ADD_FAILURE() << "the call did not fail";
  return CommunicationError(Kind::kTransport, -1, "");
}

TEST(SharedMemoryTest, AKilledPeerIsNoticedWithinTwoSeconds) {
  RunRanks(
      Transport::kSharedMemoryProcesses, 3,
      [](Communicator& ranks) {
        std::vector<std::byte> data(64), large(16 << 20);
        ranks.Barrier(std::vector<int>{0, 1, 2}, Soon());
        if (ranks.rank() == 1) raise(SIGKILL);
        const Clock::time_point start = Clock::now();
        const CommunicationError error = ErrorOf([&] {
          if (ranks.rank() == 0) ranks.Receive(1, {data}, Soon());
          if (ranks.rank() == 2) ranks.Send(1, {large}, Soon());
        });
        EXPECT_LT(Clock::now() - start, seconds(2));
        EXPECT_EQ(error.kind(), Kind::kPeerDied);
        EXPECT_EQ(error.peer(), 1);
        EXPECT_THAT(error.what(), HasSubstr("has died"));
        EXPECT_THAT(ranks.DescribeFailure(), HasSubstr("rank 1 (process "));
      },
      /*killed=*/1);
  EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
}

TEST(SharedMemoryTest, AKilledMemberEndsACollective) {
  RunRanks(
      Transport::kSharedMemoryProcesses, 3,
      [](Communicator& ranks) {
        const std::vector<int> all = {0, 1, 2};
        ranks.Barrier(all, Soon());
        if (ranks.rank() == 2) raise(SIGKILL);
        const CommunicationError error = ErrorOf([&] { ranks.Barrier(all, Soon()); });
        EXPECT_EQ(error.peer(), 2);
        EXPECT_THAT(error.what(), HasSubstr("barrier"));
      },
      /*killed=*/2);
}

TEST(SharedMemoryTest, BytesOfADeadRankStillArrive) {
  RunRanks(
      Transport::kSharedMemoryProcesses, 2,
      [](Communicator& ranks) {
        std::vector<std::byte> data(1000, std::byte{7});
        if (ranks.rank() == 0) {
          ranks.Send(1, {data}, Soon());
          raise(SIGKILL);
        }
        std::this_thread::sleep_for(milliseconds(200));
        std::vector<std::byte> received(1000);
        ranks.Receive(0, {received}, Soon());
        EXPECT_TRUE(received == data);
        EXPECT_EQ(ErrorOf([&] { ranks.Receive(0, {received}, Soon()); }).kind(), Kind::kPeerDied);
      },
      /*killed=*/0);
}

TEST(SharedMemoryTest, ADestroyedRankIsMissed) {
  RunRanks(Transport::kSharedMemoryProcesses, 2, [](Communicator& ranks) {
    if (ranks.rank() == 0) return;
    std::vector<std::byte> data(8);
    const Clock::time_point start = Clock::now();
    const CommunicationError error = ErrorOf([&] { ranks.Receive(0, {data}, Soon()); });
    EXPECT_EQ(error.kind(), Kind::kPeerDied);
    EXPECT_THAT(error.what(), HasSubstr("has left"));
    EXPECT_LT(Clock::now() - start, seconds(2));
  });
}

TEST(SharedMemoryTest, NothingIsLeftWhileTheGroupRuns) {
  RunRanks(Transport::kSharedMemoryThreads, 3, [](Communicator& ranks) {
    EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
    ranks.Barrier(std::vector<int>{0, 1, 2}, Soon());
  });
}

TEST(SharedMemoryTest, MissingRanksAreNamedAndNothingIsLeft) {
  SharedMemoryOptions options;
  options.join_deadline = milliseconds(150);
  const std::string name = UniqueGroupName();
  EXPECT_THAT(ErrorOf([&] { JoinSharedMemoryGroup(name, 1, 3, options); }).what(),
              HasSubstr("waited for rank 0"));
  const CommunicationError error = ErrorOf([&] { JoinSharedMemoryGroup(name, 0, 3, options); });
  EXPECT_EQ(error.kind(), Kind::kDeadline);
  EXPECT_THAT(error.what(), HasSubstr("rank 1, 2 did not join"));
  EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
}

TEST(SharedMemoryTest, TheLeftoverOfADeadCreatorIsReplaced) {
  const std::string name = UniqueGroupName();
  const std::string path = "/dev/shm/autopart-" + std::to_string(getuid()) + "-" + name;
  const pid_t creator = fork();
  if (creator == 0) {
    JoinSharedMemoryGroup(name, 0, 2);  // nobody comes
    _exit(0);
  }
  while (access(path.c_str(), F_OK) != 0) std::this_thread::sleep_for(milliseconds(1));
  kill(creator, SIGKILL);
  waitpid(creator, nullptr, 0);
  EXPECT_EQ(access(path.c_str(), F_OK), 0) << "the test wants a leftover";
  std::thread one([&] {
    JoinSharedMemoryGroup(name, 1, 2)->Barrier(std::vector<int>{0, 1}, Soon());
  });
  std::this_thread::sleep_for(milliseconds(20));  // rank 1 meets the leftover first
  JoinSharedMemoryGroup(name, 0, 2)->Barrier(std::vector<int>{0, 1}, Soon());
  one.join();
  EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
}

TEST(SharedMemoryTest, AnyMomentOfDeathWhileJoiningLeavesTheNextGroupWorking) {
  const std::string name = UniqueGroupName();
  for (int round = 0; round < 20; ++round) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      children.push_back(fork());
      if (children.back() == 0) {
        try {
          JoinSharedMemoryGroup(name, rank, 2);
        } catch (const std::exception&) {
        }
        _exit(0);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(150 * round));
    kill(children[round % 2], SIGKILL);
    kill(children[1 - round % 2], SIGKILL);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
  std::thread one([&] {
    JoinSharedMemoryGroup(name, 1, 2)->Barrier(std::vector<int>{0, 1}, Soon());
  });
  JoinSharedMemoryGroup(name, 0, 2)->Barrier(std::vector<int>{0, 1}, Soon());
  one.join();
  EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
}

TEST(SharedMemoryTest, AMemberThatDiesWhileJoiningEndsTheJoin) {
  const std::string name = UniqueGroupName();
  const pid_t member = fork();
  if (member == 0) {
    JoinSharedMemoryGroup(name, 1, 3);
    _exit(0);
  }
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    kill(member, SIGKILL);
  });
  const CommunicationError error = ErrorOf([&] { JoinSharedMemoryGroup(name, 0, 3); });
  killer.join();
  waitpid(member, nullptr, 0);
  EXPECT_EQ(error.kind(), Kind::kPeerDied);
  EXPECT_EQ(error.peer(), 1);
  EXPECT_THAT(LeftInSharedMemory(), ::testing::IsEmpty());
}

TEST(SharedMemoryTest, ARankThatJoinsTwiceIsRefused) {
  const std::string name = UniqueGroupName();
  std::thread zero([&] {
    JoinSharedMemoryGroup(name, 0, 3)->Barrier(std::vector<int>{0, 1, 2}, Soon());
  });
  std::thread one([&] {
    JoinSharedMemoryGroup(name, 1, 3)->Barrier(std::vector<int>{0, 1, 2}, Soon());
  });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_THAT(ErrorOf([&] { JoinSharedMemoryGroup(name, 1, 3); }).what(),
              HasSubstr("has joined already"));
  EXPECT_THAT(ErrorOf([&] { JoinSharedMemoryGroup(name, 2, 4); }).what(), HasSubstr("of 3 ranks"));
  JoinSharedMemoryGroup(name, 2, 3)->Barrier(std::vector<int>{0, 1, 2}, Soon());
  zero.join();
  one.join();
}

TEST(SharedMemoryTest, SmallRingsWrapAround) {
  SharedMemoryOptions options;
  options.ring_bytes = 16 << 10;
  const std::string name = UniqueGroupName();
  const auto run = [&](int rank) {
    auto ranks = JoinSharedMemoryGroup(name, rank, 2, options);
    std::vector<std::byte> mine(10007), theirs(10007);
    for (int round = 0; round < 500; ++round) {
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = std::byte(i * 7 + round + rank);
      auto send = ranks->StartSend(1 - rank, {mine});
      ranks->Receive(1 - rank, {theirs}, Soon());
      send->Wait(Soon());
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(theirs[i], std::byte(i * 7 + round + 1 - rank))
            << "round " << round << " at " << i;
      }
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(SharedMemoryTest, WrongNamesAndSizesAreRefused) {
  EXPECT_THROW(JoinSharedMemoryGroup("", 0, 1), std::invalid_argument);
  EXPECT_THROW(JoinSharedMemoryGroup("a/b", 0, 1), std::invalid_argument);
  EXPECT_THROW(JoinSharedMemoryGroup("a", 0, 65), std::invalid_argument);
  EXPECT_THROW(JoinSharedMemoryGroup("a", 2, 2), std::invalid_argument);
}

TEST(ProcessWatchTest, AProcessIsKnownByItsStartTime) {
  const internal::ProcessId self = internal::ThisProcess();
  EXPECT_TRUE(internal::IsRunning(self));
  EXPECT_FALSE(internal::IsRunning({self.pid, self.start_time + 1}));
  EXPECT_TRUE(internal::ProcessWatch({self.pid, self.start_time + 1}).Died());
  EXPECT_FALSE(internal::ProcessWatch(self).Died());
}

}  // namespace
}  // namespace autopart

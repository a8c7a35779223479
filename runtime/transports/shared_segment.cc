#include "runtime/transports/shared_segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace autopart::internal {
namespace {

using Kind = CommunicationError::Kind;

constexpr char kMagic[16] = "autopart shm 1";
constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeaderBytes = kPage;
constexpr uint64_t kMinRingBytes = 16 << 10;
static_assert(sizeof(RingHeader) <= kHeaderBytes);

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::string Path(const std::string& name) {
  if (name.empty() || name.size() > 200 || name.find('/') != std::string::npos) {
    throw std::invalid_argument("shared-memory group name '" + name +
                                "': 1 to 200 characters without '/' are needed");
  }
  return "/dev/shm/autopart-" + std::to_string(getuid()) + "-" + name;
}

[[noreturn]] void FailWithErrno(const std::string& what) {
  throw CommunicationError(Kind::kTransport, -1, what + ": " + std::strerror(errno));
}

void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(300)); }

}  // namespace

SharedSegment::SharedSegment(const std::string& name, int rank, int size,
                             const SharedMemoryOptions& options)
    : name_(name), path_(Path(name)), rank_(rank), size_(size), options_(options) {
  if (size < 1 || size > kMaxSharedMemoryRanks || rank < 0 || rank >= size) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                ": a shared-memory group has 1 to " +
                                std::to_string(kMaxSharedMemoryRanks) + " ranks");
  }
  const Clock::time_point deadline = Clock::now() + options.join_deadline;
  try {
    for (;;) {
      if (rank_ == 0) {
        Create(deadline);
      } else {
        while (!Open()) {
          if (Clock::now() >= deadline) {
            throw CommunicationError(Kind::kDeadline, 0,
                                     "rank " + std::to_string(rank_) + " waited for rank 0 of " +
                                         "shared-memory group '" + name_ +
                                         "', which did not come: was it started, on this host?");
          }
          Nap();
        }
      }
      Claim();
      if (WaitForAll(deadline)) return;
      Release();
    }
  } catch (...) {
    if (named_) unlink(path_.c_str());
    Release();
    throw;
  }
}

SharedSegment::~SharedSegment() { Release(); }

void SharedSegment::Release() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.bytes);
  mappings_.clear();
  control_ = nullptr;
  if (file_ >= 0) close(file_);
  file_ = -1;
}

void SharedSegment::Create(Clock::time_point deadline) {
  file_ = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) FailWithErrno("cannot make a file in /dev/shm");
  const uint64_t message_ring =
      RoundUp(std::max<uint64_t>(options_.ring_bytes, kMinRingBytes), kPage);
  // Collectives may connect all pairs: the more ranks, the smaller the rings.
  const uint64_t collective_ring =
      std::clamp<uint64_t>((4 << 20) / size_ / kPage * kPage, kMinRingBytes, 1 << 20);
  const uint64_t pairs = uint64_t(size_) * size_;
  const uint64_t bytes = RoundUp(sizeof(SharedControl), kPage) +
                         pairs * (2 * kHeaderBytes + message_ring + collective_ring);
  if (ftruncate(file_, bytes) != 0) FailWithErrno("cannot size a file in /dev/shm");
  if (!Take(0, sizeof(SharedControl))) {
    throw CommunicationError(Kind::kTransport, -1, "/dev/shm is full");
  }
  void* address =
      mmap(nullptr, sizeof(SharedControl), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (address == MAP_FAILED) FailWithErrno("cannot map a file in /dev/shm");
  mappings_.push_back({address, sizeof(SharedControl)});
  control_ = static_cast<SharedControl*>(address);  // all zero: nobody is there
  std::memcpy(control_->magic, kMagic, sizeof(kMagic));
  control_->size = size_;
  control_->message_ring_bytes = message_ring;
  control_->collective_ring_bytes = collective_ring;
  control_->creator = ThisProcess();

  const std::string self = "/proc/self/fd/" + std::to_string(file_);
  while (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    if (errno != EEXIST) FailWithErrno("cannot name the shared memory '" + path_ + "'");
    // Another group's: if its rank 0 is dead, it goes.
    const int other = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (other < 0) continue;
    ProcessId creator;
    const ssize_t got = pread(other, &creator, sizeof(creator), offsetof(SharedControl, creator));
    close(other);
    if (got != sizeof(creator) || !IsRunning(creator)) {
      unlink(path_.c_str());
    } else if (Clock::now() >= deadline) {
      throw CommunicationError(Kind::kDeadline, -1,
                               "shared-memory group name '" + name_ + "' is in use by process " +
                                   std::to_string(creator.pid) +
                                   ", which waits for its own ranks: take another name");
    } else {
      Nap();
    }
  }
  named_ = true;
}

bool SharedSegment::Open() {
  file_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0) {
    if (errno == ENOENT) return false;
    FailWithErrno("cannot open '" + path_ + "'");
  }
  void* address =
      mmap(nullptr, sizeof(SharedControl), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (address == MAP_FAILED) FailWithErrno("cannot map '" + path_ + "'");
  mappings_.push_back({address, sizeof(SharedControl)});
  auto* control = static_cast<SharedControl*>(address);
  if (!IsRunning(control->creator)) {
    Release();
    return false;
  }
  if (std::memcmp(control->magic, kMagic, sizeof(kMagic)) != 0 ||
      control->size != static_cast<uint32_t>(size_)) {
    const std::string theirs = std::to_string(control->size);
    throw CommunicationError(Kind::kTransport, 0,
                             "rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                                 " met shared-memory group '" + name_ + "' of " + theirs +
                                 " ranks: sizes and versions must agree");
  }
  control_ = control;
  return true;
}

void SharedSegment::Claim() {
  SharedRank& mine = control_->ranks[rank_];
  uint32_t absent = SharedRank::kAbsent;
  if (!mine.state.compare_exchange_strong(absent, SharedRank::kClaimed)) {
    throw CommunicationError(Kind::kTransport, rank_,
                             "rank " + std::to_string(rank_) + " of shared-memory group '" + name_ +
                                 "' has joined already (process " +
                                 std::to_string(mine.process.pid) +
                                 "): ranks must differ, and so must the names of groups");
  }
  mine.process = ThisProcess();
  mine.state.store(SharedRank::kJoined, std::memory_order_release);
}

bool SharedSegment::WaitForAll(Clock::time_point deadline) {
  ProcessWatch creator(control_->creator);
  std::vector<std::unique_ptr<ProcessWatch>> watches(size_);
  for (;;) {
    if (control_->complete.load(std::memory_order_acquire) != 0) return true;
    // Who has died after all had joined is not missed here.
    const auto completed = [&] { return control_->complete.load(std::memory_order_acquire) != 0; };
    if (rank_ != 0 && creator.Died()) return completed();
    int num_joined = 0;
    for (int i = 0; i < size_; ++i) {
      if (control_->ranks[i].state.load(std::memory_order_acquire) < SharedRank::kJoined) continue;
      ++num_joined;
      if (i == 0 || i == rank_) continue;
      if (!watches[i]) watches[i] = std::make_unique<ProcessWatch>(control_->ranks[i].process);
      if (watches[i]->Died() && !completed()) {
        throw CommunicationError(Kind::kPeerDied, i,
                                 "rank " + std::to_string(i) + " of shared-memory group '" + name_ +
                                     "' died before all ranks had joined");
      }
    }
    if (rank_ == 0 && num_joined == size_) {
      if (unlink(path_.c_str()) != 0) FailWithErrno("cannot remove '" + path_ + "'");
      named_ = false;
      control_->complete.store(1, std::memory_order_release);
      return true;
    }
    if (Clock::now() >= deadline) {
      throw CommunicationError(
          Kind::kDeadline, -1,
          "shared-memory group '" + name_ + "': rank " + Missing() + " did not join in time");
    }
    Nap();
  }
}

std::string SharedSegment::Missing() const {
  std::string missing;
  for (int i = 0; i < size_; ++i) {
    if (control_->ranks[i].state.load(std::memory_order_acquire) >= SharedRank::kJoined) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  }
  return missing;
}

// Takes memory now: writing to a page that /dev/shm cannot give would be a bus error.
bool SharedSegment::Take(uint64_t offset, uint64_t bytes) {
  for (;;) {
    if (fallocate(file_, 0, offset, bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS) {
      return true;
    }
    if (errno != EINTR) return false;
  }
}

uint64_t SharedSegment::RingOffset(int channel, int from, int to) const {
  const uint64_t message_stride = kHeaderBytes + control_->message_ring_bytes;
  const uint64_t collective_stride = kHeaderBytes + control_->collective_ring_bytes;
  const uint64_t pair = uint64_t(from) * size_ + to;
  const uint64_t base = RoundUp(sizeof(SharedControl), kPage);
  if (channel == 0) return base + pair * message_stride;
  return base + uint64_t(size_) * size_ * message_stride + pair * collective_stride;
}

RingHeader* SharedSegment::MapRing(int channel, int from, int to, uint64_t offset) {
  const uint64_t bytes = kHeaderBytes + (channel == 0 ? control_->message_ring_bytes
                                                      : control_->collective_ring_bytes);
  if (!Take(offset, kHeaderBytes)) {
    throw CommunicationError(Kind::kTransport, rank_ == from ? to : from, "/dev/shm is full");
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (address == MAP_FAILED) FailWithErrno("cannot map a ring");
  mappings_.push_back({address, bytes});
  return static_cast<RingHeader*>(address);
}

RingProducer SharedSegment::MapProducer(int channel, int from, int to) {
  const uint64_t offset = RingOffset(channel, from, to);
  RingHeader* header = MapRing(channel, from, to, offset);
  const uint64_t wanted =
      channel == 0 ? control_->message_ring_bytes : control_->collective_ring_bytes;
  uint64_t bytes = wanted;
  while (!Take(offset + kHeaderBytes, bytes)) {
    const std::string problem = std::strerror(errno);
    bytes = bytes / 2 / kPage * kPage;
    if (bytes < kMinRingBytes) {
      throw CommunicationError(Kind::kTransport, to,
                               "/dev/shm has no space for the " + std::to_string(wanted) +
                                   " bytes that messages from rank " + std::to_string(from) +
                                   " to rank " + std::to_string(to) + " need (" + problem +
                                   "): enlarge it (docker run --shm-size) or lower ring_bytes");
    }
  }
  header->capacity.store(bytes, std::memory_order_relaxed);
  return RingProducer(header, reinterpret_cast<std::byte*>(header) + kHeaderBytes);
}

RingConsumer SharedSegment::MapConsumer(int channel, int from, int to) {
  RingHeader* header = MapRing(channel, from, to, RingOffset(channel, from, to));
  return RingConsumer(header, reinterpret_cast<std::byte*>(header) + kHeaderBytes);
}

}  // namespace autopart::internal

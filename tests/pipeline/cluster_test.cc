#include "pipeline/cluster.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "partitioner/read_file.h"
#include "pipeline/cluster_file.h"
#include "pipeline/links.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoHosts[] = R"(name: two
hosts:
  - name: a
    count: 2
    devices:
      - {count: 3, device: h100}
      - count: 1
        device: {name: odd, memory: 16 GiB, fp32: 10 TFLOPS, half: 0.1 PFLOPS, memory_bandwidth: 1 TB/s, matrix_efficiency: 0.5}
    link: {bandwidth: 100 GB/s, latency: 2 us}
    network: {bandwidth: 100 Gbit/s, latency: 0.05 ms, shared: true}
)";

TEST(ClusterFile, IsReadWithItsUnits) {
  const absl::StatusOr<Cluster> cluster = ClusterFromYaml(kTwoHosts);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->name, "two");
  EXPECT_EQ(cluster->num_hosts(), 2);
  EXPECT_EQ(cluster->num_devices(), 8);
  const HostGroup& hosts = cluster->hosts[0];
  EXPECT_EQ(hosts.link, (LinkSpec{1e8, 0.002, false}));
  EXPECT_EQ(hosts.network, (LinkSpec{1.25e7, 0.05, true}));
  EXPECT_EQ(hosts.devices[0].device.half_flops_per_ms, FindDevice("h100")->half_flops_per_ms);
  const DeviceSpec& odd = hosts.devices[1].device;
  EXPECT_EQ(odd.memory_bytes, int64_t{16} << 30);
  EXPECT_EQ(odd.fp32_flops_per_ms, 1e10);
  EXPECT_EQ(odd.half_flops_per_ms, 1e11);
  EXPECT_EQ(odd.memory_bytes_per_ms, 1e9);
  EXPECT_EQ(odd.matrix_efficiency, 0.5);
}

TEST(ClusterFile, MayBeJson) {
  const absl::StatusOr<Cluster> cluster = ClusterFromYaml(
      R"({"hosts": [{"devices": [{"count": 2, "device": "v100"}],
                     "link": {"bandwidth": "150 GB/s", "latency": "5us"}}]})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->num_devices(), 2);
}

TEST(ClusterFile, NamesWhatIsWrongAndWhere) {
  struct Row {
    const char* from;
    const char* to;
    const char* expected;
  };
  for (const Row& row : {
           Row{"count: 2", "count: none", "line 4: hosts[0]: count should be a whole number"},
           {"count: 2", "count: 0", "line 4: hosts[0]: count should be a whole number from 1"},
           {"count: 2", "cuont: 2", "line 4: hosts[0] has no field 'cuont': known are name"},
           {"device: h100", "device: h1000", "line 6: unknown device 'h1000'"},
           {"memory: 16 GiB", "memory: 16",
            "line 8: hosts[0].devices[1].device: memory should be "
            "a number with a unit (B, kB"},
           {"memory: 16 GiB", "memory: -1 GiB", "memory should be a number"},
           {"memory: 16 GiB, ", "", "memory is missing (or say which known device"},
           {"0.1 PFLOPS", "0 PFLOPS", "rates must be above 0"},
           {"0.5}", "1.5}", "matrix_efficiency should be a number above 0 and at most 1"},
           {"100 GB/s", "100 Gb", "line 9: hosts[0].link: bandwidth should be a number"},
           {"2 us", "2 fortnights", "latency should be a number with a unit (ns, us, ms, s)"},
           {"shared: true", "shared: perhaps", "line 10: hosts[0].network: shared should be true"},
           {"    network:", "    #",
            "hosts[0]: network is missing: how it reaches the other hosts"},
           {"    link:", "    #", "hosts[0]: link is missing"},
           {"hosts:", "hosts: 3\nrest:", "a cluster has no field 'rest'"},
           {"name: two", "name: [two", "line"},
       }) {
    const std::string text = absl::StrReplaceAll(kTwoHosts, {{row.from, row.to}});
    const absl::Status status = ClusterFromYaml(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.to;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.expected)) << row.to;
  }
  for (const char* text : {"", "[]", "7", "hosts:", "{", "\"", "&a [*a]", "hosts: [[]]"}) {
    EXPECT_FALSE(ClusterFromYaml(text).ok()) << text;
  }
}

TEST(ClusterFile, NeedsDevices) {
  for (const char* devices : {"[]", "{}", "8"}) {
    EXPECT_THAT(
        std::string(
            ClusterFromYaml(absl::StrCat("hosts: [{devices: ", devices, "}]")).status().message()),
        HasSubstr("hosts[0]: devices should be a list"));
  }
}

TEST(ClusterFile, OfEveryExampleIsRead) {
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(AUTOPART_CLUSTERS)) {
    const absl::StatusOr<Cluster> cluster = ClusterFromYaml(*ReadFile(entry.path().string()));
    EXPECT_TRUE(cluster.ok()) << entry.path() << ": " << cluster.status();
    ++read;
  }
  EXPECT_GE(read, 4);
}

TEST(UniformCluster, HasHostsOfEight) {
  EXPECT_EQ(UniformCluster("h100", 3)->num_hosts(), 1);
  EXPECT_EQ(UniformCluster("h100", 8)->num_hosts(), 1);
  const Cluster cluster = *UniformCluster("v100", 20);
  EXPECT_EQ(cluster.num_hosts(), 3);
  EXPECT_EQ(cluster.num_devices(), 20);
  EXPECT_TRUE(cluster.hosts[0].network.shared);
  EXPECT_EQ(UniformCluster("cpu", 20)->num_hosts(), 1);
  EXPECT_EQ(PlacesOf(cluster)[19].host, 2);
}

TEST(Links, AreTheSlowerOfTwoNetworks) {
  Cluster cluster = *UniformCluster("h100", 10);
  cluster.hosts[1].network = {1000, 1, false};
  const std::vector<DevicePlace> places = PlacesOf(cluster);
  EXPECT_EQ(LinkBetween(cluster, places[0], places[7]), cluster.hosts[0].link);
  EXPECT_EQ(LinkBetween(cluster, places[0], places[9]), (LinkSpec{1000, 1, false}));
}

// 2 S (n - 1) / n bytes pass each device of a ring.
TEST(AllReduce, TakesTheTimeOfTheByteFormula) {
  Cluster cluster = *UniformCluster("h100", 8);
  cluster.hosts[0].link = {1000, 0, false};
  const std::vector<DevicePlace> places = PlacesOf(cluster);
  for (int n = 2; n <= 8; ++n) {
    std::vector<int> ranks(n);
    for (int r = 0; r < n; ++r) ranks[r] = r;
    EXPECT_DOUBLE_EQ(AllReduceMs(cluster, places, ranks, 1 << 20, 1),
                     2.0 * (1 << 20) * (n - 1) / n / 1000);
  }
  EXPECT_EQ(AllReduceMs(cluster, places, {3}, 1 << 20, 1), 0);
}

TEST(AllReduce, OverHostsGoesThroughTheNetworkThatTheirDevicesShare) {
  Cluster cluster = *UniformCluster("v100", 16);
  cluster.hosts[0].network = {1000, 0, true};
  cluster.hosts[0].link = {1e6, 0, false};
  const std::vector<DevicePlace> places = PlacesOf(cluster);
  std::vector<int> all(16);
  for (int r = 0; r < 16; ++r) all[r] = r;
  const double alone = AllReduceMs(cluster, places, all, 1 << 20, 1);
  EXPECT_NEAR(alone, 2.0 * (1 << 20) * 15 / 16 / 1000, 1);
  // Two stages that reduce at once have half of it each.
  EXPECT_NEAR(AllReduceMs(cluster, places, all, 1 << 20, 2), 2 * alone, 1);
}

}  // namespace
}  // namespace autopart

// What the fuzzers begin with: write_samples FOLDER makes FOLDER/<reader>/sample-<i>.
#include <filesystem>
#include <fstream>

#include "tests/partitioner/fuzz/readers.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (const autopart::testing::Reader& reader : autopart::testing::Readers()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / reader.name;
    std::filesystem::create_directories(folder);
    int i = 0;
    for (const std::string& sample : reader.samples()) {
      std::ofstream(folder / ("sample-" + std::to_string(i++))) << sample;
    }
  }
}

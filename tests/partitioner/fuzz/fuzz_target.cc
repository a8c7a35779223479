// libFuzzer's entry (clang, -fsanitize=fuzzer): one program for each reader, AUTOPART_READER its
// place in Readers(). `make fuzz` builds and runs them; `PROGRAM FILE` runs one input again.
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "tests/partitioner/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const autopart::testing::Reader& reader = autopart::testing::Readers()[AUTOPART_READER];
  try {
    reader.feed({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    std::cerr << reader.name << ": " << error.what() << "\n";
    std::abort();
  }
  return 0;
}

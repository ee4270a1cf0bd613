// What each fuzz target does with one input: read it, and hold what was read to its promises. Any
// answer but a crash, a CHECK, a sanitizer's finding or a hang is right. libFuzzer calls these
// through driver.cc; replay_test.cc calls them with the kept inputs of fuzz/corpus/<target>/.
#pragma once

#include <cstddef>
#include <span>

namespace fuzz {

using Bytes = std::span<const std::byte>;

// Index of a zip container: records inside the file, apart, under different names.
void Zip(Bytes input);
// One pickle: what was read can be written, and reads back as the same tree.
void Pickle(Bytes input);
// Parallel rules in JSON: what was parsed can be asked about any name.
void Rules(Bytes input);
// A whole file, zip or legacy: sums compared, every tensor decoded inside its storage.
void TorchFile(Bytes input);

}  // namespace fuzz

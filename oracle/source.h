// The files of a checkpoint as the oracle sees them: which rank wrote each, how many ranks there
// are, what is missing. Decides no tensor layout. Tested by oracle_test.cc. Format:
// docs/format/directory.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/directory.h"
#include "checkpoint/status.h"
#include "checkpoint/tensor.h"
#include "oracle/holder.h"
#include "oracle/oracle.h"

namespace oracle {

// How many ranks there are along each axis.
struct Grid {
  int32_t tensor = 1, pipeline = 1, data = 1;
};

struct Source {
  checkpoint::StepFolder folder;
  std::vector<checkpoint::TorchFile> files;
  std::vector<std::string> labels;  // of `files`, relative to the run folder
  std::map<int64_t, size_t> model;  // number in mp_rank_XX -> index into files
  std::map<std::pair<int64_t, int64_t>, size_t> optimizer;  // (mp_rank number, data rank)
  std::map<std::pair<int64_t, int64_t>, size_t> layers;     // (layer number, tensor rank)
  std::map<std::string, size_t> universal;                  // "<parameter>/<state>" below zero/
  Grid grid;
  bool pipelined = false;  // layer files hold the module
  std::vector<Finding> findings;

  const checkpoint::Value& Root(size_t file) const { return files[file].root; }
  // The model file of a model-parallel rank; null Value where absent.
  checkpoint::Value Model(int32_t stage, int32_t tensor) const;
  // The model file that speaks for all: the lowest number whose file has a module, or the lowest.
  // REQUIRES: one is there (OpenSource guarantees it).
  size_t AnyModel() const;
  int64_t ModelNumber(int32_t stage, int32_t tensor) const {
    return int64_t{stage} * grid.tensor + tensor;
  }
  Place PlaceOf(size_t file, Rank rank) const { return {labels[file], "", rank}; }
  // Decodes a tensor of a file. Errors: kMalformedTensor.
  checkpoint::Result<Stored> TensorAt(size_t file, Rank rank, const checkpoint::Value& value) const;
};

// Errors: those of the readers, kUnsupported (ZeRO-3, MoE), kMissingFile (no model file at all),
// kInconsistent, kLimitExceeded.
checkpoint::Result<Source> OpenSource(const std::filesystem::path& path,
                                      const OpenOptions& options);

// Every file that the topology needs and every file that is there.
std::vector<FileFact> ListFiles(const Source& source, bool optimizer_files,
                                const std::vector<int64_t>& layer_numbers);

}  // namespace oracle
